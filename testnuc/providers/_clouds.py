"""Claude on Amazon Bedrock and Vertex AI: the Messages API under a URL for each model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    from testnuc.transport.endpoint import Endpoint

__all__ = ["Cloud", "cloud_of"]

_VERTEX = re.compile(r"/projects/[^/]+/locations/[^/]+$")


@dataclass(frozen=True, slots=True)
class Cloud:
    """What differs from Anthropic's own API: the URL, the key, and two fields of the body."""

    base_path: str
    #: With the model's name, which is not in the body.
    call_path: str
    #: ``anthropic_version`` in the body.
    version: str
    #: The environment variable of the key, a bearer token.
    variable: str
    #: Whether it is the cloud's own host, which needs a key.
    own: bool


def cloud_of(endpoint: Endpoint, model: str) -> Cloud | None:
    """Return the cloud that a base URL belongs to; None: Anthropic's own API, or one like it.

    A gateway in front of Bedrock is recognized by a path that ends in ``/model``, one in front of
    Vertex AI by the path of a location.
    """
    host, path, name = endpoint.host, endpoint.path, quote(model, safe=":@")
    own = "bedrock-runtime" in host
    if own or path.endswith("/model"):
        base = path.removesuffix("/model")
        call, version = f"/model/{name}/invoke", "bedrock-2023-05-31"
        return Cloud(base, call, version, "AWS_BEARER_TOKEN_BEDROCK", own)
    own = "aiplatform." in host and host.endswith(".googleapis.com")
    if _VERTEX.search(path):
        call, version = f"/publishers/anthropic/models/{name}:rawPredict", "vertex-2023-10-16"
        return Cloud(path, call, version, "CLOUDSDK_AUTH_ACCESS_TOKEN", own)
    if own:
        raise InvalidInputError(
            f"base_url has no project and location; give https://{host}/v1/projects/<project>/"
            "locations/<location>, such as .../locations/global"
        )
    return None
