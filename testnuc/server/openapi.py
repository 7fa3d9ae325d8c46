"""The OpenAPI 3.1 document of a service, for client generators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testnuc._version import __version__

if TYPE_CHECKING:
    from testnuc.labels import LabelSet
    from testnuc.server.settings import ServerSettings

_CODES = [
    "llm_kept",
    "neighbors_disagree",
    "not_embedded",
    "none_of_the_labels",
    "low_trust",
    "other",
]
_SHARE = {"type": "number", "minimum": 0, "maximum": 1}
_MAYBE_SHARE = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
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
_STRING = {"type": "string"}
_MAYBE_STRING = {"type": ["string", "null"]}


def document(labels: LabelSet, settings: ServerSettings) -> dict[str, Any]:
    """Return the OpenAPI document of a service with these labels and limits."""
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "testnuc",
            "version": __version__,
            "description": "Labels texts with an LLM and a vote of their nearest neighbors.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            "/v1/classify": {"post": _classify()},
            "/v1/labels": {
                "get": _lookup("labels", "The labels and their descriptions.", "Labels")
            },
            "/v1/info": {"get": _lookup("info", "Model, pool, limits and version.", "Info")},
            "/healthz": {"get": _probe("Liveness.", {"200": "The process is alive."})},
            "/readyz": {
                "get": _probe(
                    "Readiness.",
                    {
                        "200": "Requests are accepted.",
                        "503": "Starting, paused by the provider, or shutting down.",
                    },
                )
            },
            "/metrics": {
                "get": {
                    "operationId": "metrics",
                    "summary": "Metrics for Prometheus.",
                    "responses": {
                        "200": _content("Prometheus text format.", {"text/plain": _STRING})
                    },
                }
            },
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
    if settings.token is not None:
        for path in ("/v1/classify", "/v1/labels", "/v1/info", "/metrics"):
            for operation in made["paths"][path].values():
                operation["security"] = [{"token": []}]
    return made


def _classify() -> dict[str, Any]:
    return {
        "operationId": "classify",
        "summary": "Label one text, or many texts that vote on each other.",
        "description": "With `stream`, or `Accept: application/x-ndjson`, the results of `texts` "
        "are JSON lines in order of completion, each a `Result` with its `index`. If the remaining "
        "texts fail as a whole, the last line is an `Error`. An invalid text in `texts` fails "
        "alone: its result has an `error`. Each response has the header `X-Request-ID`, that of "
        "the request if it has one.",
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"oneOf": [_ref("OneText"), _ref("ManyTexts")]}}
            },
        },
        "responses": {
            "200": _content(
                "A `Result` for `text`, `Results` for `texts`.",
                {
                    "application/json": {"oneOf": [_ref("Result"), _ref("Results")]},
                    "application/x-ndjson": _STRING,
                },
            ),
            **{status: _json(why, "Error") for status, why in _ERRORS.items()},
        },
    }


def _lookup(name: str, summary: str, schema: str) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": _json(summary, schema),
            "401": _json(_ERRORS["401"], "Error"),
            "421": _json(_ERRORS["421"], "Error"),
        },
    }


def _probe(summary: str, answers: dict[str, str]) -> dict[str, Any]:
    return {
        "summary": summary,
        "responses": {status: _json(what, "Status") for status, what in answers.items()},
    }


def _json(description: str, schema: str) -> dict[str, Any]:
    return _content(description, {"application/json": _ref(schema)})


def _content(description: str, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a response: its description, and content type -> schema."""
    content = {kind: {"schema": schema} for kind, schema in schemas.items()}
    return {"description": description, "content": content}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas(labels: LabelSet, settings: ServerSettings) -> dict[str, Any]:
    label: dict[str, Any] = {"enum": [*labels.names, None]}
    several: dict[str, Any] = {}
    if labels.multilabel:
        label = {"type": ["string", "null"], "description": "All labels, joined by '; '."}
        several = {
            "labels": _list(
                {"enum": list(labels.names)}, description="The labels, largest share first."
            ),
            "shares": {"type": "object", "additionalProperties": _SHARE},
            "trusts": {"type": "object", "additionalProperties": _MAYBE_SHARE},
        }
    if labels.tree is not None:
        several = {
            "path": _list(
                _STRING, description="The names on the way to the label, from the top level on."
            ),
            "path_shares": _list(_SHARE),
            "path_trusts": _list(_MAYBE_SHARE),
        }
    text = {"type": "string", "minLength": 1, "maxLength": settings.max_text_chars}
    id_ = {"type": ["string", "integer"]}
    explain = {
        "type": "boolean",
        "default": False,
        "description": "Include votes and neighbors, which are texts of other requests.",
    }
    error = _object(type=_STRING, message=_STRING)
    own = _object(
        label=label,
        confidence=_MAYBE_SHARE,
        said={**_MAYBE_STRING, "description": "The answer verbatim, if it differs from `label`."},
        **({"labels": _list({"enum": list(labels.names)})} if labels.multilabel else {}),
    )
    reason = _object(code={"enum": _CODES}, message=_STRING)
    neighbor = _object(
        text=_STRING, similarity={"type": "number"}, label=label, confidence=_MAYBE_SHARE
    )
    result = _object(
        label={**label, "description": "null: no label, or withheld."},
        trust={
            **_MAYBE_SHARE,
            "description": "Estimated chance that the label is right; null: unknown.",
        },
        share={**_SHARE, "description": "Winner's part of the vote's weight."},
        margin={**_SHARE, "description": "Winner minus runner-up, as share."},
        voters={"type": "integer", "minimum": 0},
        complete={
            "type": "boolean",
            "description": "False if the vote was decided before all neighbors were asked.",
        },
        own=_maybe("The LLM's own prediction of this text.", own),
        reason=_maybe("Why neighbors did not decide, or the label is withheld.", reason),
        source={
            **_MAYBE_STRING,
            "description": "What gave the label: llm, vote, head, referee or person.",
        },
        error=_maybe("Error of the text's own call.", error),
    )
    # not required: an invalid text has none
    result["properties"] |= several
    result["properties"] |= {
        "index": {"type": "integer", "minimum": 0, "description": "Index in `texts`."},
        "id": {**id_, "description": "The id given with the text."},
        "text": {"type": ["string", "null"], "description": "The text, as given."},
        "votes": {"type": "object", "additionalProperties": {"type": "number"}},
        "neighbors": _list(neighbor),
    }
    # an invalid text fails alone
    many = _list(_STRING, minItems=1, maxItems=settings.max_texts)
    return {
        "OneText": {
            **_object(text=text),
            "properties": {
                "text": text,
                "id": {**id_, "description": "Returned with the result."},
                "explain": explain,
                "stream": {"const": False},
            },
        },
        "ManyTexts": {
            **_object(texts=many),
            "properties": {
                "texts": many,
                "ids": _list(id_, description="Of each text; returned with the results."),
                "explain": explain,
                "stream": {"type": "boolean", "default": False},
            },
        },
        "Result": result,
        "Results": _object(results=_list(_ref("Result"))),
        "Error": _object(error=_object(status={"type": "integer"}, type=_STRING, message=_STRING)),
        "Labels": _object(labels=_list(_object(label=_STRING, description=_MAYBE_STRING))),
        "Info": _object(
            version=_STRING,
            status={"enum": ["starting", "ready", "paused", "draining"]},
            model=_STRING,
            labels={"type": "integer"},
            pool={"type": "integer", "description": "Texts that neighbors come from."},
            decision={
                **_MAYBE_STRING,
                "description": "Why the LLM's own labels were kept when they were last.",
            },
            limits={"type": "object", "additionalProperties": {"type": "integer"}},
        ),
        "Status": _object(status={"enum": ["alive", "starting", "ready", "paused", "draining"]}),
    }


def _list(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def _maybe(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "oneOf": [schema, {"type": "null"}]}


def _object(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has all of some properties, and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
