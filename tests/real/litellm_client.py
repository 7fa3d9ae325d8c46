"""LiteLLM's client against a server; runs in the environment of `make real`.

Reads ``{"base_url", "calls": [{"model", ..}]}`` from standard input, and prints for each call what
LiteLLM read, or the name of its exception.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"


def main() -> None:
    """Make each call in turn."""
    import litellm

    litellm.suppress_debug_info = True
    given = json.load(sys.stdin)
    print(json.dumps([called(litellm, **call) for call in given]))


def called(litellm: Any, **call: Any) -> dict[str, Any]:
    """Return what LiteLLM read."""
    try:
        said = litellm.completion(api_key="k", num_retries=0, **call)
    except Exception as error:  # noqa: BLE001 - its class is the result
        return {"error": type(error).__name__, "status": getattr(error, "status_code", None)}
    (choice,) = said.choices
    return {
        "content": choice.message.content,
        "finish": choice.finish_reason,
        "input": said.usage.prompt_tokens,
        "output": said.usage.completion_tokens,
    }


if __name__ == "__main__":
    main()
