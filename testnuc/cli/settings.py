"""Settings of commands: flags win over ``TESTNUC_*``, ``testnuc.toml`` and the defaults."""

import json
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import typer

from testnuc._base.checks import is_loopback
from testnuc.errors import ConfigurationError

FILE = "testnuc.toml"
PREFIX = "TESTNUC_"
#: Characters of a settings file.
_LONGEST = 200_000
#: Dots of a line: tomllib takes time and memory by the square of those of a key.
_MOST_DOTS = 1_000
#: Environment variables that are not options.
_OTHER = frozenset({"config", "token", "data"})
#: Secrets, which a settings file must not contain, and where to put them.
_SECRETS = {
    "api_key": "set OPENAI_API_KEY or ANTHROPIC_API_KEY",
    "openai_api_key": "set OPENAI_API_KEY",
    "anthropic_api_key": "set ANTHROPIC_API_KEY",
    "token": "set TESTNUC_TOKEN, or name a file by token_file",
    "password": "set PGPASSWORD, or use ~/.pgpass",
}
#: The context of a command whose settings file was not named, but found in the current folder.
UNNAMED = "unnamed"
#: Settings that are addresses, with what is sent there.
_ADDRESSES = {
    "base_url": "the texts, and the key in the environment,",
    "store": "the texts, and the password in the environment,",
}


def read_settings(path: Path, options: Mapping[str, Collection[str]]) -> dict[str, dict[str, Any]]:
    """Return command -> option -> value of a settings file; a command checks its own values."""
    given, every = _tables(path), {name for of in options.values() for name in of}
    tables = {
        name: given.pop(name)
        for name in options.keys() & given.keys() - every
        if isinstance(given[name], dict)
    }
    general = _values(path, "", given, every, {*every, *options})
    values = {}
    for command, of in options.items():
        values[command] = {name: value for name, value in general.items() if name in of}
        # the table of a command wins over the settings of all
        table = tables.get(command, {})
        values[command] |= _values(path, f"{command}.", table, of, of)
    return values


def read_sets(path: Path, options: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return label set -> option -> value of a file with a table for each."""
    tables = _tables(path)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigurationError(
                f"{path}: {name} is not a label set; begin each with a line [NAME], and name what "
                "all have in common on the command line"
            )
    return {n: _values(path, f"{n}.", table, options, options) for n, table in tables.items()}


def _tables(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            content = file.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            raise ConfigurationError(
                f"{path} has more than {_LONGEST:,} characters, the most of settings; name a file "
                "of labels instead of listing them"
            )
        if any(line.count(".") > _MOST_DOTS for line in content.splitlines()):
            raise ConfigurationError(f"{path} has a line with over {_MOST_DOTS:,} dots; break it")
        return tomllib.loads(content)
    except FileNotFoundError as exc:
        raise ConfigurationError(f"settings file {path} does not exist; check --config") from exc
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as exc:
        raise ConfigurationError(f"{path} cannot be read as TOML: {exc}") from exc


def _values(
    path: Path, prefix: str, table: dict[str, Any], known: Collection[str], near: Collection[str]
) -> dict[str, Any]:
    """Return the values of a table as a shell gives them."""
    values: dict[str, Any] = {}
    for name, value in table.items():
        shown, key = f"{path}: {prefix}{name}", name.replace("-", "_")
        secret = isinstance(value, str) and has_password(value)
        if secret or key in _SECRETS:
            raise ConfigurationError(
                f"{shown} {'contains a password' if secret else 'is a secret'}, and a settings "
                f"file is easily shared; {_SECRETS['password' if secret else key]}"
            )
        if key not in known:
            close = get_close_matches(key, near, 1)
            others = f"choose from {', '.join(sorted(near))}"
            hint = f"did you mean {close[0]!r}?" if close else others
            raise ConfigurationError(f"{path}: {prefix + name!r} is not a setting; {hint}")
        # labels, with or without descriptions
        if isinstance(value, list | dict) and key not in {"labels", "protect"}:
            raise ConfigurationError(f"{shown} is {value!r:.60}; give a single value")
        if isinstance(value, str) and "\0" in value:
            raise ConfigurationError(f"{shown} has a null character; remove it")
        values[key] = value if isinstance(value, str) else json.dumps(value, default=str)
        if key == "protect":
            values[key] = [*value] if isinstance(value, list) else [values[key]]
    return values


def misspelled(environment: Iterable[str], options: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yield notes on variables that look like a setting."""
    every = {name for of in options.values() for name in of}
    for variable in sorted(environment):
        key = variable.removeprefix(PREFIX).lower()
        if variable.startswith(PREFIX) and key not in every | _OTHER:
            for name in get_close_matches(key, every, 1):
                yield f"{variable} is not a setting; did you mean {PREFIX}{name.upper()}?"


def has_password(value: str) -> bool:
    """Return whether a value is a URL with a password."""
    try:
        return "://" in value and bool(urlsplit(value).password)
    except ValueError:
        return False  # no URL: whatever takes it says so


def source_of(context: Any, option: str) -> str | None:
    """Return where an option's value is from: COMMANDLINE, ENVIRONMENT, DEFAULT_MAP or DEFAULT."""
    # typer comes with a click of its own, so that its class has no importable name
    source = context.get_parameter_source(option)
    return None if source is None else str(source.name)


def require_named(context: typer.Context, given: Mapping[str, Any]) -> None:
    """Check that nothing is sent to another machine because of a settings file nobody named.

    Such a file may have come with the folder, and the key in the environment is meant for another
    server. What is sent to this machine is said.
    """
    if context.obj != UNNAMED:
        return
    for name, what in _ADDRESSES.items():
        url = given.get(name)
        if not isinstance(url, str) or "://" not in url:
            continue
        if source_of(context, name) != "DEFAULT_MAP":
            continue
        # a command without a budget has the address of a client for the keys of stored answers
        if name == "base_url" and "labels" in given and "budget_usd" not in given:
            continue
        with suppress(ValueError):  # no URL: whatever takes it says so
            urlsplit(url)
            if not _is_here(url):
                raise ConfigurationError(
                    f"{FILE} in this folder sets {name} to {url}, and {what} would be sent there; "
                    f"if that is right, name the file: --config {FILE}, or TESTNUC_CONFIG={FILE} "
                    "in the environment"
                )
            said = f"note: {FILE} in this folder sets {name}: {what} are sent to {url}"
            print(said, file=sys.stderr)


def _is_here(url: str) -> bool:
    """Return whether a URL is of this machine, by what it says."""
    try:
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"}:
            return is_loopback(parts.hostname or "")
        # several servers, or a folder with a socket
        servers = unquote(parts.netloc.rpartition("@")[2]).split(",")
        named = {"host", "hostaddr", "service", "servicefile"} & parse_qs(parts.query).keys()
    except ValueError:
        return False
    hosts = (urlsplit(f"//{server}").hostname or "" for server in servers if server[:1] != "/")
    return not named and all(host == "" or is_loopback(host) for host in hosts)
