"""The OpenAPI 3.1 document of a service, for client generators: ``openapi.json``, filled in."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import orjson

from testnuc._version import __version__
from testnuc.labels import LabelSet
from testnuc.server.schemas import SEVERAL, TREE
from testnuc.server.settings import ServerSettings


def document(sets: Mapping[str, LabelSet], settings: ServerSettings) -> dict[str, Any]:
    """Return the document of a service with these label sets, by name, and these limits.

    Each set has paths and schemas of its own; "" is the name of the only one.
    """
    text = (files("testnuc.server") / "openapi.json").read_text(encoding="utf-8")
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    made: dict[str, Any] = {}
    for name, labels in sets.items():
        place, suffix = (f"/{name}", f"_{name}") if name else ("", "")
        made = orjson.loads(text.replace("{place}", place).replace("{set}", suffix))
        _fill(made["components"]["schemas"], labels, suffix)
        paths |= made["paths"]
        schemas |= made["components"]["schemas"]
    made["info"]["version"], made["paths"] = __version__, paths
    made["components"]["schemas"] = schemas
    schemas["OneText"]["properties"]["text"]["maxLength"] = settings.max_text_chars
    schemas["ManyTexts"]["properties"]["texts"]["maxItems"] = settings.max_texts
    if settings.token is None:
        for operations in paths.values():
            for operation in operations.values():
                operation.pop("security", None)
    return made


def _fill(schemas: dict[str, Any], labels: LabelSet, suffix: str) -> None:
    """Name the labels in schemas, and leave out fields that results with them do not have."""
    schemas[f"Label{suffix}"]["enum"] = list(labels.names)
    schemas[f"LabelOrNull{suffix}"]["enum"] = [*labels.names, None]
    without = TREE if labels.tree is None or labels.multilabel else ()
    if labels.multilabel:
        joined = {"type": ["string", "null"], "description": "All labels, joined by '; '."}
        schemas[f"LabelOrNull{suffix}"] = joined
    else:
        without = (*without, *SEVERAL)
        own = schemas[f"Own{suffix}"]
        own["required"].remove("labels")
        del own["properties"]["labels"]
    for name in without:
        del schemas[f"Result{suffix}"]["properties"][name]
