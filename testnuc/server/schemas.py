"""Request and response bodies of ``POST /v1/classify``."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from typing import Any

import orjson

from testnuc._base.checks import valid_text
from testnuc._base.foreign import count_values
from testnuc._version import __version__
from testnuc.errors import InvalidInputError
from testnuc.labels import LabelSet
from testnuc.server.errors import RequestError, error_fields
from testnuc.server.settings import ServerSettings
from testnuc.types import Classification, Reason, row

_FIELDS = ("text", "texts", "id", "ids", "stream", "explain")
#: Fields of each result that are answered as they are.
_PLAIN = ("trust", "share", "margin", "voters", "complete", "source")
#: The same of texts with several labels, of labels in a tree, and of a request with `explain`.
SEVERAL = ("labels", "shares", "trusts")
TREE = ("path", "path_shares", "path_trusts")
_IN_SOME = (*SEVERAL, *TREE, "votes", "neighbors")
#: Said once, in ``/v1/info``; the reason of a batch would be a paragraph in each result.
_BRIEF = {"llm_kept": "the LLM's own label, or none, is kept; `decision` of /v1/info says why"}
_LONGEST_ID = 200
#: Values of a request, or ten for each text.
_VALUES = 50_000


@dataclass(frozen=True, slots=True)
class ClassifyRequest:
    """A valid request, with its valid texts; `stream` and `explain` as in the OpenAPI document."""

    texts: list[str]
    #: Whether the body has `texts`, not `text`.
    many: bool
    stream: bool
    explain: bool
    #: Positions in the request of the valid texts.
    places: list[int]
    #: The errors of the other texts, by position.
    refused: dict[int, str]
    #: What the caller calls each text, by position; None: nothing.
    ids: list[str | int] | None
    #: Texts of the request, as given.
    given: list[Any]

    def failed(self, labels: LabelSet) -> list[dict[str, Any]]:
        """Return the results of the texts that cannot be labeled."""
        return [
            record(labels.unlabeled(0, "", InvalidInputError(problem)), self, place)
            for place, problem in self.refused.items()
        ]


def read(body: bytes, settings: ServerSettings) -> ClassifyRequest:
    """Parse and validate a body; respond with 400 if it is not JSON, else with 422."""
    given = _object(body, max(_VALUES, 10 * settings.max_texts))
    for name in ("stream", "explain"):
        if not isinstance(value := given.setdefault(name, False), bool):
            raise _invalid(f"{name} is {_kind(value)}; give true or false")
    many = "texts" in given
    if given["stream"] and not many:
        raise _invalid('"stream" requires "texts"')
    texts = _checked_texts(given["texts"], settings.max_texts) if many else [given["text"]]
    ids = None
    if "id" in given or "ids" in given:
        ids = _checked_ids(given["ids"] if many else [given["id"]], len(texts))
    places, refused = list[int](), dict[int, str]()
    for at, text in enumerate(texts):
        if (problem := _problem(f"texts[{at}]" if many else "text", text, settings)) is None:
            places.append(at)
        elif many:
            refused[at] = problem
        else:
            raise _invalid(problem)
    valid, flags = [texts[at] for at in places], (given["stream"], given["explain"])
    return ClassifyRequest(valid, many, *flags, places, refused, ids, texts)


def record(
    result: Classification, asked: ClassifyRequest, place: int | None = None
) -> dict[str, Any]:
    """Return the JSON form of a result, whose place in the request is that of its index.

    Only with `explain` does it contain texts of other requests, which neighbors are.
    """
    place = asked.places[result.index] if place is None else place
    fields = row(result, full=asked.explain)
    own, text = result.prediction, asked.given[place]
    made: dict[str, Any] = {"index": place} if asked.many else {}
    if asked.ids is not None:
        made["id"] = asked.ids[place]
    made |= {"text": text if isinstance(text, str) else None, "label": result.label}
    made |= {name: fields[name] for name in _PLAIN}
    made["own"] = made["reason"] = None
    if own is not None:
        made["own"] = {"label": own.label, "confidence": own.confidence, "said": own.said}
        if "own_labels" in fields:
            made["own"]["labels"] = fields["own_labels"]
    if result.reason is not None:
        code = result.reason.code if isinstance(result.reason, Reason) else "other"
        made["reason"] = {"code": code, "message": _BRIEF.get(code, str(result.reason))}
    made["error"] = None if result.error is None else error_fields(result.error)
    return made | {name: fields[name] for name in _IN_SOME if name in fields}


def _object(body: bytes, most: int) -> dict[str, Any]:
    """Return the fields of a body: known fields only, and either "text" or "texts"."""
    # a million lists take a second; brackets and commas of texts do not count
    if count_values(body) > most:
        parts = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        if count_values(b"".join(parts[::2])) > most:
            raise _invalid(f"the body has more than {most:,} values")
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise RequestError(400, "invalid_json", f"the body is not JSON: {exc}") from exc
    if not isinstance(given, dict):
        raise _invalid(f'the body is {_kind(given)}; send an object such as {{"text": ".."}}')
    for name in given:
        if name not in _FIELDS:
            near = get_close_matches(name[:60], _FIELDS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(_FIELDS)}"
            raise _invalid(f"unknown field {name[:60]!r}; {hint}")
    if ("text" in given) == ("texts" in given):
        raise _invalid('give either "text" or "texts"')
    for name, of in (("id", "text"), ("ids", "texts")):
        if name in given and of not in given:
            raise _invalid(f'"{name}" belongs to "{of}"')
    return given


def _checked_texts(texts: Any, most: int) -> list[Any]:
    if not isinstance(texts, list) or not 1 <= len(texts) <= most:
        size = f" of {len(texts)}" if isinstance(texts, list) else ""
        raise _invalid(f"texts is {_kind(texts)}{size}; give a list of 1 to {most} strings")
    return texts


def _checked_ids(ids: Any, texts: int) -> list[str | int]:
    if not isinstance(ids, list) or len(ids) != texts:
        raise _invalid(f'"ids" must be a list with an id for each of the {texts} texts')
    for one in ids:
        plain = isinstance(one, str | int) and not isinstance(one, bool)
        if not plain or len(str(one)) > _LONGEST_ID:
            shown = repr(str(one)[:60]) if plain else _kind(one)
            raise _invalid(
                f"an id is {shown}; give strings or integers of at most {_LONGEST_ID} characters"
            )
    return ids


def _problem(name: str, text: Any, settings: ServerSettings) -> str | None:
    """Return what is wrong with a text, or None."""
    if not isinstance(text, str):
        return f"{name} is {_kind(text)}; give a string"
    if (problem := valid_text(text)) is not None:
        return f"{name} {problem}"
    if len(text) > settings.max_text_chars:
        return (
            f"{name} has {len(text):,} characters; at most {settings.max_text_chars:,} are "
            "allowed; shorten it, or label its parts"
        )
    return None


def _invalid(message: str) -> RequestError:
    return RequestError(422, "invalid_input", message)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


def openapi(sets: Mapping[str, LabelSet], settings: ServerSettings) -> dict[str, Any]:
    """Return the OpenAPI document of a service with these label sets, by name, and these limits."""
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
    without = TREE if labels.tree is None else ()
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
