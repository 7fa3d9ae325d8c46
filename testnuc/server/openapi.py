"""The OpenAPI 3.1 document of a service, for client generators."""

from collections.abc import Mapping
from typing import Any

from testnuc._version import __version__
from testnuc.labels import LabelSet
from testnuc.server.schemas import EXPLAINED, PLAIN, SEVERAL, TREE
from testnuc.server.settings import ServerSettings

_SHARE = {"minimum": 0, "maximum": 1}
#: Kinds of values by short name. ``?``: or null, ``[]``: a list of, ``{}``: by name; a capital: a
#: schema of the document.
_KINDS: dict[str, dict[str, Any]] = {
    "boolean": {"type": "boolean"},
    "count": {"type": "integer", "minimum": 0},
    "flag": {"type": "boolean", "default": False},
    "id": {"type": ["string", "integer"]},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "share": {"type": "number", **_SHARE},
    "share?": {"type": ["number", "null"], **_SHARE},
    "string": {"type": "string"},
    "string?": {"type": ["string", "null"]},
}
_CODES = "llm_kept neighbors_disagree not_similar not_embedded none_of_the_labels low_trust other"
_STATES = ["starting", "ready", "paused", "draining"]
_ERRORS = {
    "400": "The body is not JSON.",
    "401": "The token is missing or wrong.",
    "408": "Timeout while receiving the body.",
    "413": "The body is too large.",
    "415": "The content type is not JSON, or the body is compressed.",
    "421": "Without a token, the Host must be 127.0.0.1 or localhost.",
    "422": "The body is invalid, or over a limit.",
    "429": "Too many texts are pending; see Retry-After.",
    "500": "Internal error; see the log of the service.",
    "502": "The LLM provider or the embedder failed.",
    "503": "Not ready, shutting down, out of budget, or rate-limited by the provider.",
    "504": "Timeout.",
}
_CLASSIFY = (
    "With `stream`, or `Accept: application/x-ndjson`, the results of `texts` are JSON lines in "
    "order of completion, each a `Result` with its `index`. If the remaining texts fail as a "
    "whole, the last line is an `Error`. An invalid text in `texts` fails alone: its result has an "
    "`error`. Each response has the header `X-Request-ID`, that of the request if it has one."
)


def document(labels: LabelSet, settings: ServerSettings) -> dict[str, Any]:
    """Return the OpenAPI document of a service with these labels and limits."""
    classify = _operation(
        "classify",
        "Label one text, or many texts that vote on each other.",
        **{"200": "A `Result` for `text`, `Results` for `texts`."},
        **_ERRORS,
    )
    classify["description"] = _CLASSIFY
    classify["requestBody"] = {"required": True} | _content(_either("OneText", "ManyTexts"))
    classify["responses"]["200"] |= _content(
        _either("Result", "Results"), **{"application/x-ndjson": _KINDS["string"]}
    )
    metrics = _operation("metrics", "Metrics for Prometheus.")
    metrics["responses"]["200"] = {
        "description": "Prometheus text format.",
        "content": {"text/plain": {"schema": _KINDS["string"]}},
    }
    refused = {status: _ERRORS[status] for status in ("401", "421")}
    described, known = "The labels and their descriptions.", "Model, pool, limits and version."
    paused = "Starting, paused by the provider, or shutting down."
    alive = _responses("Status", **{"200": "The process is alive."})
    ready = _responses("Status", **{"200": "Requests are accepted.", "503": paused})
    guarded = {
        "/v1/classify": {"post": classify},
        "/v1/labels": {"get": _operation("labels", described, "Labels", **refused)},
        "/v1/info": {"get": _operation("info", known, "Info", **refused)},
        "/metrics": {"get": metrics},
    }
    if settings.token is not None:
        for operations in guarded.values():
            for operation in operations.values():
                operation["security"] = [{"token": []}]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "testnuc",
            "version": __version__,
            "description": "Labels texts with an LLM and a vote of their nearest neighbors.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            **guarded,
            "/healthz": {"get": {"summary": "Liveness.", "responses": alive}},
            "/readyz": {"get": {"summary": "Readiness.", "responses": ready}},
        },
        "components": {
            "schemas": _schemas(labels, settings),
            # also of a service without a token: clients are generated once
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token of the service (TESTNUC_TOKEN, --token-file).",
                }
            },
        },
    }


def _operation(name: str, summary: str, schema: str = "", **failures: str) -> dict[str, Any]:
    responses = _responses(schema, **{"200": summary}) if schema else {}
    responses |= _responses("Error", **failures)
    return {"operationId": name, "summary": summary, "responses": responses}


def _responses(schema: str, **answers: str) -> dict[str, Any]:
    body = _content(_ref(schema))
    return {status: {"description": what} | body for status, what in answers.items()}


def _content(json: dict[str, Any], **others: dict[str, Any]) -> dict[str, Any]:
    """Return the bodies of a request or response: a schema for each content type."""
    schemas = {"application/json": json, **others}
    return {"content": {kind: {"schema": schema} for kind, schema in schemas.items()}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _either(*names: str) -> dict[str, Any]:
    return {"oneOf": list(map(_ref, names))}


def _schemas(labels: LabelSet, settings: ServerSettings) -> dict[str, Any]:
    label: dict[str, Any] = {"enum": [*labels.names, None]}
    own_labels: dict[str, Any] = {}
    # not required of a result: an invalid text has none
    more: Mapping[str, Any] = {} if labels.tree is None else TREE
    if labels.multilabel:
        label = {"type": ["string", "null"], "description": "All labels, joined by '; '."}
        own_labels, more = {"labels": "[Label]"}, SEVERAL
    result = _object(
        label={**label, "description": "null: no label, or withheld."},
        own=_maybe("The LLM's own prediction of this text.", "Own"),
        reason=_maybe("Why neighbors did not decide, or the label is withheld.", "Reason"),
        error=_maybe("Error of the text's own call.", "TextError"),
        **PLAIN,
    )
    result["properties"] |= _properties(
        index=("count", "Index in `texts`."),
        id=("id", "The id given with the text."),
        text=("string?", "The text, as given."),
        **more,
        **EXPLAINED,
    )
    text = {**_KINDS["string"], "minLength": 1, "maxLength": settings.max_text_chars}
    # an invalid text fails alone
    many = {**_kind("[string]"), "minItems": 1, "maxItems": settings.max_texts}
    explain = ("flag", "Include votes and neighbors, which are texts of other requests.")
    one_text, many_texts = _object(text=text), _object(texts=many)
    one_text["properties"] |= _properties(
        id=("id", "Returned with the result."), explain=explain, stream={"const": False}
    )
    many_texts["properties"] |= _properties(
        ids=("[id]", "Of each text; returned with the results."), explain=explain, stream="flag"
    )
    said = "The answer verbatim, if it differs from `label`."
    return {
        "OneText": one_text,
        "ManyTexts": many_texts,
        "Result": result,
        "Results": _object(results="[Result]"),
        "Own": _object(label=label, confidence="share?", said=("string?", said), **own_labels),
        "Reason": _object(code={"enum": _CODES.split()}, message="string"),
        "Neighbor": _object(text="string", similarity="number", label=label, confidence="share?"),
        "TextError": _object(type="string", message="string"),
        "Error": _object(error=_object(status="integer", type="string", message="string")),
        "Label": {"enum": list(labels.names)},
        "Labels": _object(labels="[Described]"),
        "Described": _object(label="string", description="string?"),
        "Info": _object(
            version="string",
            status={"enum": _STATES},
            model="string",
            labels="integer",
            judged=("integer", "Judged texts that it has learned from."),
            since=("string", "When this model, these labels and what was learned were loaded."),
            before={
                "type": ["object", "null"],
                "description": "The same of what the latest reload replaced.",
            },
            pool=("integer", "Texts that neighbors come from."),
            decision=("string?", "Why the LLM's own labels were kept when they were last."),
            limits="{integer}",
        ),
        "Status": _object(status={"enum": ["alive", *_STATES]}),
    }


def _kind(name: str) -> dict[str, Any]:
    """Return the schema of a kind of values."""
    if name[0] == "[":
        return {"type": "array", "items": _kind(name[1:-1])}
    if name[0] == "{":
        return {"type": "object", "additionalProperties": _kind(name[1:-1])}
    return dict(_KINDS[name]) if name in _KINDS else _ref(name)


def _maybe(description: str, name: str) -> dict[str, Any]:
    return {"description": description, "oneOf": [_ref(name), {"type": "null"}]}


def _properties(**given: str | tuple[str, ...] | dict[str, Any]) -> dict[str, Any]:
    """Return schemas, each given as a kind, as a kind and what it means, or itself."""
    made = {}
    for name, one in given.items():
        schema, *meaning = one if isinstance(one, tuple) else (one,)
        made[name] = _kind(schema) if isinstance(schema, str) else schema
        if meaning:
            made[name]["description"] = meaning[0]
    return made


def _object(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has all of some properties, and no others."""
    return {
        "type": "object",
        "properties": _properties(**properties),
        "required": list(properties),
        "additionalProperties": False,
    }
