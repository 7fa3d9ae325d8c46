"""Error responses of providers as testnuc's exceptions.

Words of servers are shown in one line, without keys, and read in bounded time.
"""

import base64
import html
import re
from collections.abc import Mapping
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from testnuc import errors
from testnuc._base.foreign import read_json, write_json
from testnuc.errors import printable
from testnuc.limits.headers import header

#: Most characters of a provider's message that are quoted.
_QUOTED = 300
#: Most characters of it that are searched for its meaning.
_READ = 10_000
#: Most values in an error, which is read several times.
_MOST_VALUES = 20_000

#: Fields of an error with its message, and with its codes. Cloudflare has a list of ``errors``,
#: Bedrock a ``Message`` about the key.
_MESSAGES = ("error", "errors", "message", "Message", "detail", "msg")
_CODES = ("type", "code", "param", "status")

#: Most characters of a code that are shown, and most codes.
_CODE, _MOST_CODES = 80, 8
#: Most characters of an answer that an error quotes.
_ANSWER = 50_000

_TAG = re.compile(r"<[^<>]*>")
#: What pydantic quotes of a request, in errors that are written as text.
_INPUT = re.compile(r"""['"]input['"]: |input_value=""")
_AFTER = re.compile(r"""\{['"]type['"]: ['"]\w{1,40}['"], ['"]loc|, input_type=""")

_REQUEST_IDS = ("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid")

#: Error types -> status, for errors in a response with status 200 or in a batch.
STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "insufficient_quota": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}

#: Codes of an exhausted account, and messages of providers that send no code.
_QUOTA_CODES = {
    "insufficient_quota",
    "billing_error",
    "billing_hard_limit_reached",
    "billing_not_active",
    "access_terminated",
}
_QUOTA = re.compile(
    r"credit balance is too low|reached your specified .{0,40}usage limit", re.IGNORECASE
)
_BILLING = "Check the account's plan and billing."
_FILTERED = re.compile(
    r"content[ _-]?(management|filter|policy)|responsible ?ai|safety (system|polic)"
    r"|flagged|moderation",
    re.IGNORECASE,
)
_FILTERED_CODES = {"content_filter", "invalid_prompt", "responsibleaipolicyviolation"}
_TOO_LONG = re.compile(
    r"context.{0,10}(length|window|size)|prompt is too long|input is too long|request too large"
    r"|maximum (prompt|input) length|exceed.{0,30}context|token count.{0,40}exceed"
    r"|max_new_tokens`? must be|messages is too long",
    re.IGNORECASE,
)
#: The words of a text that is too long, and of the rate limits of Bedrock and Cerebras.
_TOO_MANY = re.compile(r"too many tokens", re.IGNORECASE)
_TOO_LONG_CODES = {"context_length_exceeded", "too_many_prompt_tokens", "string_above_max_length"}
#: llama.cpp's words about an answer that it could not parse.
_MALFORMED = re.compile(r"output that does not match the expected \S* ?format", re.IGNORECASE)
#: Some servers fail with a 500 on a format of the answer that they do not know.
_FORMAT = re.compile(
    r"response[_ ]?format|json[_ ](object|schema)|structured[_ ]?output|output[_ ](config|format)"
    r"|grammar|guided[_ ](json|decoding)|outlines|logprobs is not supported",
    re.IGNORECASE,
)
#: The status of a failed request, and one among the codes of an error.
ERROR_STATUS = re.compile(r"[45]\d\d", re.ASCII)
#: ``"retryDelay": "34s"``, also quoted by a gateway.
_RETRY_DELAY = re.compile(rb'retryDelay\\*"\s*:\s*\\*"(\d{1,6}(?:\.\d{1,9})?)s')
#: OpenRouter has no provider that takes all parameters, or that the account allows: no matter of
#: the model's name.
_NO_ENDPOINT = re.compile(
    r"no endpoints (found (that|matching)|available)|no allowed providers", re.IGNORECASE
)
#: A firewall in front of the API: its page is no JSON, or says so.
_FIREWALL = re.compile(
    r"attention required|firewall|(request|you) (has |have |was |were )?(been )?blocked",
    re.IGNORECASE,
)
#: Of a rate limit that is reported as an exhausted account.
_A_MINUTE = re.compile(r"token-limit|per minute|\b[rt]pm\b", re.IGNORECASE)
#: Statuses below 500 of failures that may pass: of a gateway, and of a model behind it.
_PASSING = {408, 409, 421, 424, 425, 460, 499}
#: A proxy wants a password.
_LOG_IN = 407
#: Statuses of a server that is unavailable, whatever its message names.
_UNAVAILABLE = {503, 504, 529}


def parse_error(body: bytes, *, nested: bool = True) -> tuple[str, frozenset[str]]:
    """Parse the message, and the type, code and param, of an error response.

    In any of the shapes in use: ``{"error": {..}}``, ``{"error": ".."}``, ``{"message": ..}``,
    ``{"detail": ..}``, a list of one of them, or not JSON. OpenRouter has the error of the provider
    behind it in ``metadata.raw``, often as JSON in a string; `nested`: read such errors, too.
    """
    try:
        value: Any = read_json(body, most=_MOST_VALUES)
    except ValueError:
        text = body[:2000].decode("utf-8", "replace")
        return " ".join(_TAG.sub(" ", text).split()), frozenset()
    codes: set[str] = set()
    behind = ""
    message: Any = value
    for _ in range(4):
        message = _first(message)
        if not isinstance(message, dict):
            break
        inner = message.get("innererror") or message.get("metadata")
        if isinstance(inner, dict):
            codes.update(_text(inner[key]) for key in ("code", "reasons") if inner.get(key))
            if inner.get("raw") and nested:
                behind, more = _quoted(inner["raw"])
                codes |= more
        given = filter(None, map(message.get, _CODES))
        codes.update(str(code) for code in given if type(code) in {str, int})
        message = next((message[key] for key in _MESSAGES if message.get(key)), "")
    if message is None:
        message = ""
    elif not isinstance(message, str):
        message = _text(message)
    elif nested and message.lstrip()[:1] in ("{", "["):
        # gateways quote the whole response of the server behind them
        quoted, more = _quoted(message)
        message, codes = quoted or message, codes | more
    if behind:
        message = f"{message}: {behind}" if message else behind
    whole, *inputs = _INPUT.split(message[:_READ])
    ends = ((part, _AFTER.search(part)) for part in inputs)
    message = "".join([whole, *(part[end.start() :] for part, end in ends if end is not None)])
    return " ".join(message.split()), frozenset(codes - {"error"})


def _first(message: Any) -> Any:
    """Return the first error of a list; that of a validator stays whole: it names the fields.

    But for the values that it quotes: labels and texts of the request say nothing about the error.
    """
    if not isinstance(message, list) or not message:
        return message
    if not isinstance(message[0], dict) or "loc" not in message[0]:
        return message[0]
    return [
        {name: error[name] for name in ("type", "loc", "msg") if name in error}
        for error in message
        if isinstance(error, dict)
    ]


def _quoted(response: Any) -> tuple[str, frozenset[str]]:
    return parse_error(_text(response).encode("utf-8", "replace"), nested=False)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else write_json(value).decode()


def as_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    where: str,
    key: str | tuple[str, ...] | None = None,
    hint: str = "",
) -> errors.ProviderError:
    """Return the exception for an error response; status 200: the error is in a normal response.

    Its message begins with `where`, model and host. The `key` is removed from it; `hint` says how
    to set another one.
    """
    text, codes = parse_error(body)
    message = redacted(text, key)
    if len(message) > _QUOTED:
        message = message[: _QUOTED - 2] + ".."
    if status == 200:
        ordered = sorted(codes)
        status = next((STATUS[code] for code in ordered if code in STATUS), 0) or next(
            (int(code) for code in ordered if ERROR_STATUS.fullmatch(code)), 500
        )
    if status == 403 and header(headers, "retry-after"):
        status = 429
    kind, remedy, alone = _kind(status, text, codes)
    # not of the API, which knows the key
    of_firewall = _FIREWALL.search(text) or body.strip()[:1] not in b'{["'
    if kind is errors.AuthenticationError and status == 403 and of_firewall:
        kind = errors.BadRequestError
        remedy = (
            "A firewall in front of the API has blocked the request: because of this text, or of "
            "this machine's address."
        )
    elif kind is errors.AuthenticationError and status not in {402, _LOG_IN}:
        remedy = hint
    if 300 <= status < 400:
        target = redacted(header(headers, "location") or "another address", key)
        remedy = (
            f"The server redirects to {target.partition('?')[0][:_QUOTED]}; that would send the "
            "key there, so give the right base_url."
        )
    shown = sorted(redacted(code, key)[:_CODE] for code in sorted(codes)[:_MOST_CODES])
    facts = f" [{', '.join(filter(None, shown))}]" if any(shown) else ""
    problem = f"{where}: {status} {message or 'without a message'}{facts}"
    # Anthropic has it in the body, also behind gateways
    identifier = request_id(headers) or printable(_string(body, "request_id")[:_QUOTED])
    # Google has no header for it
    asked = _RETRY_DELAY.search(body[:20_000]) if status in {429, 503} else None
    error = kind(
        f"{problem.removesuffix('.')}. {remedy}" if remedy else problem,
        status_code=status,
        request_id=without_key(identifier, key) or None,
        retry_after=float(asked[1]) if asked else None,
    )
    if alone:
        error.fatal = False
    if isinstance(error, errors.UnreadableReplyError):
        # what the model said
        error.content = without_key(_string(body, "error", "failed_generation")[-_ANSWER:], key)
    return error


def _kind(  # noqa: C901, PLR0911 - one return for each kind
    status: int, text: str, codes: frozenset[str]
) -> tuple[type[errors.ProviderError], str, bool]:
    """Return exception, remedy, and whether the error concerns this call alone."""
    lowered = {code.lower() for code in codes}
    if status == 498 or (status == 429 and _A_MINUTE.search(text) and not _TOO_LONG.search(text)):
        # the former: Groq has no room for a call of the tier "flex"
        return errors.RateLimitedError, "", False
    if (status == 402 and text) or lowered & _QUOTA_CODES or _QUOTA.search(text):
        return errors.QuotaExceededError, _BILLING, False
    if status == 402:
        # without a word it may concern this call alone, as a stray 401 does
        return errors.AuthenticationError, _BILLING, False
    if "json_validate_failed" in lowered or _MALFORMED.search(text):
        # the model's answer did not have the form; Groq quotes it in "failed_generation"
        return errors.UnreadableReplyError, "", True
    if status in {400, 403, 422} and (lowered & _FILTERED_CODES or _FILTERED.search(text)):
        return errors.ContentRefusedError, "", True
    if status in {401, 403} or "no_db_connection" in lowered:
        # the latter is LiteLLM's proxy without a database, which knows one key;
        # OpenAI forbids log-probabilities of some models: no matter of the key
        of_key = "logprobs" not in text
        return errors.AuthenticationError if of_key else errors.BadRequestError, "", False
    if status == _LOG_IN:
        return errors.AuthenticationError, "A proxy asks for its user name and password.", False
    if status == 404 or status < 400:
        return _missing(status, text)
    if (
        status == 413
        or lowered & _TOO_LONG_CODES
        or (status in {400, 422, 429} and _TOO_LONG.search(text))
        or (status in {400, 422} and _TOO_MANY.search(text))
    ):
        remedy = "The text is too long for the model: shorten it, or lower texts_per_call."
        return errors.BadRequestError, remedy, True
    if status == 429:
        return errors.RateLimitedError, "", False
    if status >= 500 and status not in _UNAVAILABLE and _FORMAT.search(text):
        return errors.BadRequestError, "", False
    if status in _PASSING or status >= 500:
        return errors.ServerError, "", False
    return errors.BadRequestError, "", False


def _missing(status: int, text: str) -> tuple[type[errors.ProviderError], str, bool]:
    """Return what `_kind` returns for a 404, or a redirect: the address is at fault, no text."""
    if status < 400:
        return errors.UnknownModelError, "Check the base_url.", False
    if not _NO_ENDPOINT.search(text):
        return errors.UnknownModelError, "Check the model's name and the base_url.", False
    remedy = "" if "parameters" in text else "Check the account's privacy and routing settings."
    return errors.BadRequestError, remedy, False


def _string(body: bytes, *path: str) -> str:
    """Return the string at a path of a body in JSON; "" if there is none."""
    try:
        found = read_json(body, most=_MOST_VALUES)
        for name in path:
            found = found[name]
    except (ValueError, TypeError, KeyError):
        return ""
    return found if isinstance(found, str) else ""


def request_id(headers: Mapping[str, str]) -> str | None:
    """Return the request id in the headers of a response."""
    identifier = header(headers, *_REQUEST_IDS)
    return None if identifier is None else printable(identifier[:_QUOTED])


#: Characters that are read of what is shown; an error shows fewer.
_SHOWN_AT_MOST = 2000
#: Characters in a row that a key and a text must share; shorter keys are removed as a whole.
_SHARED = 8
#: The shortest key that is removed.
_SHORTEST = 4
#: How often characters may be escaped: an error that a gateway quotes is JSON in JSON.
_ESCAPES = 3

#: Probable keys: known prefixes, bearer tokens.
_SECRET = re.compile(
    r"(?i:bearer|basic)\s+[\w.~+/=*-]{6,}"
    r"|\b(?:sk|pk|rk|gsk|xai|hf)[-_][\w*.-]{6,}"
    r"|\bAIza[\w-]{10,}"
    r"|\beyJ[\w-]{10}[\w.-]*"
)
#: Long runs, which are probably keys if they hold letters and digits.
_RUN = re.compile(r"[\w*-]{32,}")
_ESCAPED = re.compile(
    r"%[0-9a-f]{2}|\\u00[0-9a-f]{2}|\\x[0-9a-f]{2}|\\.|&(?:#[0-9]{1,4}|#x[0-9a-f]{1,4}|[a-z]{2,6});",
    re.IGNORECASE,
)
_WORD = re.compile(r"\S+")
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


def redacted(text: str, key: str | tuple[str, ...] | None = None) -> str:
    """Return the beginning of a foreign text without the key, and anything that looks like one."""
    text = without_key(printable(text[:_SHOWN_AT_MOST]), key)
    return _RUN.sub(_if_mixed, _SECRET.sub("[key]", text))


def _if_mixed(run: re.Match[str]) -> str:
    """Return "[key]" for a run with letters and digits."""
    digits = any(c.isdigit() for c in run[0])
    return "[key]" if digits and any("a" <= c.lower() <= "z" for c in run[0]) else run[0]


def without_key(text: str, key: str | tuple[str, ...] | None) -> str:
    """Return `text` without the key and parts of it, in base64 and with escapes as well.

    A part is what has eight characters or more in common with the key, in any case; of a word with
    escapes nothing is left then. `key` may be several.
    """
    for one in (key,) if isinstance(key, str) else key or ():
        text = _without(text, one)
    return text


def _without(text: str, key: str) -> str:
    if len(key) < _SHORTEST:
        return text
    text = text.replace(key, "[key]")
    if len(key) < _SHARED or len(text) < _SHARED:
        return text
    parts = _parts(key)
    kept, at, end = [], 0, 0
    # one character each: some have two in lower case
    lowered = text.translate(_LOWER)
    while at + _SHARED <= len(lowered):
        if lowered[at : at + _SHARED] not in parts:
            at += 1
            continue
        kept.append(text[end:at])
        while lowered[at : at + _SHARED] in parts:
            at += 1
        at += _SHARED - 1
        end = at
    text = "[key]".join([*kept, text[end:]])
    return _WORD.sub(lambda word: "[key]" if _is_escaped(word[0], parts) else word[0], text)


def _is_escaped(word: str, parts: frozenset[str]) -> bool:
    """Whether a word has a part of a key once its escapes are undone."""
    for _ in range(_ESCAPES):
        if not any(mark in word for mark in "%\\&"):
            break
        word = _ESCAPED.sub(_character, word)
        lowered = word.translate(_LOWER)
        if any(lowered[at : at + _SHARED] in parts for at in range(len(lowered))):
            return True
    return False


@lru_cache(maxsize=16)
def _parts(key: str) -> frozenset[str]:
    """Return all parts of a key as it may be written, in lower case."""
    raw = key.encode()
    forms = [key, raw.hex()]
    for shift in range(3):
        # it may stand anywhere in what is encoded, as in "user:key"
        encoded = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        inner = encoded[(0, 2, 3)[shift] : len(encoded) - ((shift + len(raw)) % 3 > 0)]
        forms += [inner, inner.replace("+", "-").replace("/", "_")]
    forms = [form.lower() for form in forms]
    return frozenset(
        form[i : i + _SHARED] for form in forms for i in range(len(form) - _SHARED + 1)
    )


def _character(found: re.Match[str]) -> str:
    """Return the character that an escape stands for; another one, if it stands for several."""
    escape = found[0]
    if escape[0] == "&":
        meant = html.unescape(escape)
        return meant if len(meant) == 1 else "&"
    return chr(int(escape.lstrip("%\\uUxX"), 16)) if len(escape) > 2 else escape[1]
