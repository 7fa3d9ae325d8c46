"""The OpenAPI 3.1 document of a service, for client generators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testnuc._version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from testnuc.server.settings import ServerSettings

__all__ = ["document"]

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


def document(labels: Sequence[str], settings: ServerSettings) -> dict[str, Any]:
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
            "/healthz": {"get": _probe("Liveness.", {"200": "The process is alive."})},
            "/readyz": {
                "get": _probe(
                    "Readiness.",
                    {"200": "Requests are accepted.", "503": "Starting or shutting down."},
                )
            },
            "/metrics": {
                "get": {
                    "operationId": "metrics",
                    "summary": "Metrics for Prometheus.",
                    "responses": {
                        "200": {
                            "description": "Prometheus text format.",
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
    error_content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "operationId": "classify",
        "summary": "Label one text, or many texts that vote on each other.",
        "description": "With `stream`, or `Accept: application/x-ndjson`, the results of `texts` "
        "are JSON lines in order of completion, each a `Result` with its `index`. If the remaining "
        "texts fail as a whole, the last line is an `Error`.",
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
                status: {"description": description, "content": error_content}
                for status, description in _ERRORS.items()
            },
        },
    }


def _probe(summary: str, answers: dict[str, str]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Status"}}}
    return {
        "summary": summary,
        "responses": {
            status: {"description": description, "content": content}
            for status, description in answers.items()
        },
    }


def _schemas(labels: Sequence[str], settings: ServerSettings) -> dict[str, Any]:
    label = {"enum": [*labels, None]}
    text = {"type": "string", "minLength": 1, "maxLength": settings.max_text_chars}
    explain = {
        "type": "boolean",
        "default": False,
        "description": "Include votes and neighbors, which are texts of other requests.",
    }
    error = _object(type={"type": "string"}, message={"type": "string"})
    neighbor = _object(
        text={"type": "string"}, similarity={"type": "number"}, label=label,
        confidence=_MAYBE_SHARE,
    )  # fmt: skip
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
        own={
            "description": "The LLM's own prediction of this text.",
            "oneOf": [_object(label=label, confidence=_MAYBE_SHARE), {"type": "null"}],
        },
        reason={"type": ["string", "null"]},
        source={
            "type": ["string", "null"],
            "description": "What gave the label: llm, vote, head, referee or person.",
        },
        error={
            "description": "Error of the text's own call.",
            "oneOf": [error, {"type": "null"}],
        },
    )
    result["properties"] |= {
        "index": {"type": "integer", "minimum": 0, "description": "Index in `texts`."},
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
        "Error": _object(
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
