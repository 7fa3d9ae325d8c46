"""The service described for generators of clients: OpenAPI 3.1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testnuc._version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc.server.settings import ServerSettings

__all__ = ["document"]

_SHARE = {"type": "number", "minimum": 0, "maximum": 1}
_MAYBE_SHARE = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
_REFUSALS = {
    "400": "The body is not JSON.",
    "401": "The token is missing or wrong.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not declared as JSON, or is compressed.",
    "421": "Without a token, only 127.0.0.1 and localhost are answered.",
    "422": "The body is not what is asked for, or beyond a limit.",
    "429": "Too many texts are waiting; Retry-After says when to come back.",
    "500": "The service failed; its log says why.",
    "502": "The LLM provider or the embedder failed.",
    "503": "Not ready, about to end, out of budget, or limited by the provider.",
    "504": "No answer in time.",
}


def document(labels: Sequence[str], settings: ServerSettings) -> dict[str, Any]:
    """Return the OpenAPI document of a service with these labels and limits."""
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "testnuc",
            "version": __version__,
            "description": "Labels texts with an LLM; each label is voted on by the text's nearest "
            "unlabeled neighbors.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            "/v1/classify": {"post": _classify()},
            "/healthz": {"get": _probe("Whether the process is alive.", {"200": "It is."})},
            "/readyz": {
                "get": _probe(
                    "Whether requests are taken.",
                    {"200": "They are.", "503": "It starts, or is about to end."},
                )
            },
            "/metrics": {
                "get": {
                    "operationId": "metrics",
                    "summary": "Metrics for Prometheus.",
                    "responses": {
                        "200": {
                            "description": "Prometheus' text format.",
                            "content": {"text/plain": {"schema": {"type": "string"}}},
                        }
                    },
                }
            },
        },
        "components": {"schemas": _schemas(labels, settings)},
    }
    if settings.token is not None:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path in ("/v1/classify", "/metrics"):
            for operation in made["paths"][path].values():
                operation["security"] = [{"token": []}]
    return made


def _classify() -> dict[str, Any]:
    refused = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    return {
        "operationId": "classify",
        "summary": "Label one text, or many that vote on each other.",
        "description": "With `stream`, or `Accept: application/x-ndjson`, the results of `texts` "
        "come as lines of JSON in the order they finish, each a `Result` with its `index`; should "
        "all that is left fail, a last line is a `Refusal`.",
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "oneOf": [
                            {"$ref": "#/components/schemas/OneText"},
                            {"$ref": "#/components/schemas/ManyTexts"},
                        ]
                    }
                }
            },
        },
        "responses": {
            "200": {
                "description": "A `Result` for `text`, `Results` for `texts`.",
                "content": {
                    "application/json": {
                        "schema": {
                            "oneOf": [
                                {"$ref": "#/components/schemas/Result"},
                                {"$ref": "#/components/schemas/Results"},
                            ]
                        }
                    },
                    "application/x-ndjson": {"schema": {"type": "string"}},
                },
            },
            **{
                status: {"description": told, "content": refused}
                for status, told in _REFUSALS.items()
            },
        },
    }


def _probe(summary: str, answers: dict[str, str]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Status"}}}
    return {
        "summary": summary,
        "responses": {
            status: {"description": told, "content": content} for status, told in answers.items()
        },
    }


def _schemas(labels: Sequence[str], settings: ServerSettings) -> dict[str, Any]:
    label = {"enum": [*labels, None]}
    text = {"type": "string", "minLength": 1, "maxLength": settings.max_text_chars}
    explain = {
        "type": "boolean",
        "default": False,
        "description": "Tell votes and neighbors; these are texts that others sent.",
    }
    error = _object(type={"type": "string"}, message={"type": "string"})
    neighbor = _object(
        text={"type": "string"}, similarity={"type": "number"}, label=label,
        confidence=_MAYBE_SHARE,
    )  # fmt: skip
    result = _object(
        label={**label, "description": "null: nobody could say, or it is withheld."},
        trust={**_MAYBE_SHARE, "description": "How far to trust the label; null: unknown."},
        share={**_SHARE, "description": "The label's part of the vote."},
        margin={**_SHARE, "description": "Its lead over the runner-up."},
        voters={"type": "integer", "minimum": 0},
        complete={"type": "boolean", "description": "False: certain before all were asked."},
        own={
            "description": "What the LLM said of this text alone.",
            "oneOf": [_object(label=label, confidence=_MAYBE_SHARE), {"type": "null"}],
        },
        reason={"type": ["string", "null"]},
        error={
            "description": "Why the text's own call failed.",
            "oneOf": [error, {"type": "null"}],
        },
    )
    result["properties"] |= {
        "index": {"type": "integer", "minimum": 0, "description": "Which of `texts` it is."},
        "votes": {"type": "object", "additionalProperties": {"type": "number"}},
        "neighbors": {"type": "array", "items": neighbor},
    }
    many = {"type": "array", "items": text, "minItems": 1, "maxItems": settings.max_texts}
    return {
        "OneText": {
            **_object(text=text),
            "properties": {"text": text, "explain": explain, "stream": {"const": False}},
        },
        "ManyTexts": {
            **_object(texts=many),
            "properties": {
                "texts": many,
                "explain": explain,
                "stream": {"type": "boolean", "default": False},
            },
        },
        "Result": result,
        "Results": _object(
            results={"type": "array", "items": {"$ref": "#/components/schemas/Result"}}
        ),
        "Refusal": _object(
            error=_object(
                status={"type": "integer"}, type={"type": "string"}, message={"type": "string"}
            )
        ),
        "Status": _object(status={"enum": ["alive", "starting", "ready", "draining"]}),
    }


def _object(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has all of some properties, and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
