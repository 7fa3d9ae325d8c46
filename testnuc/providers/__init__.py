"""LLM providers by name, imported on first use."""

from testnuc.errors import InvalidInputError
from testnuc.protocols import APIKey, WireProvider

__all__ = ["SERVERS", "resolve"]

#: Servers with chat completions, by the name that users may try -> their base URL. The table in
#: docs/providers.md has each of them, with how it is known to work.
SERVERS = {
    "azure": "https://resource.openai.azure.com/openai/v1",
    "cerebras": "https://api.cerebras.ai/v1",
    "cloudflare": "https://api.cloudflare.com/client/v4/accounts/ID/ai/v1",
    "dashscope": "https://dashscope.aliyuncs.com/compatible-mode/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
    "groq": "https://api.groq.com/openai/v1",
    "lm_studio": "http://localhost:1234/v1",
    "mistral": "https://api.mistral.ai/v1",
    "ollama": "http://localhost:11434/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "perplexity": "https://api.perplexity.ai/chat/completions",
    "snowflake": "https://account.snowflakecomputing.com/api/v2/cortex/v1",
    "together": "https://api.together.ai/v1",
    "vllm": "http://localhost:8000/v1",
    "xai": "https://api.x.ai/v1",
    "z.ai": "https://api.z.ai/api/paas/v4",
}


def resolve(
    model: str, *, base_url: str | None = None, api_key: APIKey | None = None
) -> WireProvider:
    """Return the provider of a model name, ``"openai/.."`` or ``"anthropic/.."``.

    The engine itself resolves ``"local/zero-shot"``, which needs the embedder. The provider's own
    environment variables are the defaults of `base_url` and `api_key`.
    """
    if isinstance(model, str):
        kind, _, name = model.partition("/")
        if name.strip():
            if kind == "openai":
                from testnuc.providers.openai import OpenAI

                return OpenAI(name, base_url=base_url, api_key=api_key)
            if kind == "anthropic":
                from testnuc.providers.anthropic import Anthropic

                return Anthropic(name, base_url=base_url, api_key=api_key)
        server = SERVERS.get(kind.lower())
        if server is not None and name.strip():
            raise InvalidInputError(
                f"{kind} is not a kind of provider; give model='openai/{name:.100}', "
                f"base_url='{server}' and its api_key."
            )
    raise InvalidInputError(
        f'model {model!r:.120} has no known provider; use "openai/<model>" (with base_url: any '
        'OpenAI-compatible server), "anthropic/<model>" or "local/zero-shot".'
    )
