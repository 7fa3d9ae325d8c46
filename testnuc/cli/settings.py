"""Settings of commands: flags win over ``TESTNUC_*``, ``testnuc.toml`` and the defaults."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from testnuc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FILE", "PREFIX", "defaults", "has_password"]

FILE = "testnuc.toml"
PREFIX = "TESTNUC_"
#: Environment variables that are not options.
_OTHER = frozenset({"CONFIG", "TOKEN", "DATA"})
#: Secrets, which a settings file must not contain, and where to put them.
_SECRETS = {
    "api_key": "set OPENAI_API_KEY or ANTHROPIC_API_KEY",
    "openai_api_key": "set OPENAI_API_KEY",
    "anthropic_api_key": "set ANTHROPIC_API_KEY",
    "token": "set TESTNUC_TOKEN, or name a file by token_file",
    "password": "set PGPASSWORD, or use ~/.pgpass",
}
#: Command -> option -> parser of its value.
_Options = Mapping[str, Mapping[str, Any]]


def defaults(
    options: _Options, config: str | None, environment: Mapping[str, str]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return command -> option -> default, and notes on variables that look like a setting.

    The parser of a value raises `ValueError`. Without `config`, `FILE` in the current folder is
    read, if it is there.
    """
    values: dict[str, dict[str, Any]] = {command: {} for command in options}
    path = Path(config) if config is not None else Path(FILE)
    if config is not None or path.is_file():
        _take_file(path, options, values)
    return values, _take_environment(environment, options, values)


def _take_file(path: Path, options: _Options, values: dict[str, dict[str, Any]]) -> None:
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as exc:
        raise ConfigurationError(f"settings file {path} does not exist; check --config") from exc
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigurationError(f"{path} cannot be read as TOML: {exc}") from exc
    every = {name for of in options.values() for name in of}
    tables = {}
    for name, value in given.items():
        key = name.replace("-", "_")
        if name in options and isinstance(value, dict) and key not in every:
            tables[name] = value
            continue
        _require_known(path, name, key, every, every | set(options))
        for command, of in options.items():
            if key in of:
                values[command][key] = _value(f"{path}: {name}", value, of[key])
    # the table of a command wins over the settings of all
    for command, table in tables.items():
        of = options[command]
        for name, value in table.items():
            key = name.replace("-", "_")
            _require_known(path, f"{command}.{name}", key, of, of)
            values[command][key] = _value(f"{path}: {command}.{name}", value, of[key])


def _require_known(
    path: Path, name: str, key: str, known: Iterable[str], near: Iterable[str]
) -> None:
    if key in _SECRETS:
        raise ConfigurationError(
            f"{path}: {name} is a secret, and a settings file is easily shared; {_SECRETS[key]}"
        )
    if key not in known:
        raise ConfigurationError(f"{path}: {name!r} is not a setting; {_hint(key, near)}")


def _hint(key: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = get_close_matches(key, names, 1)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(names)}"


def _value(name: str, value: Any, convert: Any) -> Any:
    if isinstance(value, str) and has_password(value):
        raise ConfigurationError(
            f"{name} contains a password, and a settings file is easily shared; "
            f"{_SECRETS['password']}"
        )
    if isinstance(value, list | dict):
        # labels, with or without descriptions
        if not name.endswith("labels"):
            raise ConfigurationError(f"{name} is {value!r:.60}; give a single value")
        value = json.dumps(value)
    try:
        return convert(value)
    except ValueError as exc:
        raise ConfigurationError(f"{name} is {value!r}; {exc}") from exc


def has_password(value: str) -> bool:
    """Return whether a value is a URL with a password."""
    try:
        return "://" in value and bool(urlsplit(value).password)
    except ValueError:
        return False  # no URL: whatever takes it says so


def _take_environment(
    environment: Mapping[str, str], options: _Options, values: dict[str, dict[str, Any]]
) -> list[str]:
    notes = []
    every = sorted({name for of in options.values() for name in of})
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable.removeprefix(PREFIX) in _OTHER:
            continue
        key = variable.removeprefix(PREFIX).lower()
        for command, of in options.items():
            if key in of:
                try:
                    values[command][key] = of[key](environment[variable])
                except ValueError as exc:
                    raise ConfigurationError(
                        f"{variable} is {environment[variable]!r}; {exc}"
                    ) from exc
        if key not in every and (close := get_close_matches(key, every, 1)):
            notes.append(f"{variable} is not a setting; did you mean {PREFIX}{close[0].upper()}?")
    return notes
