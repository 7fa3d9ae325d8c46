"""Labels from files: .csv, .tsv, .json, .jsonl, .yaml, .xlsx and .txt."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from testnuc._base.checks import needing
from testnuc._base.jsonl import write_whole
from testnuc.cli.reading import content_of, read_table, require_column, to_stderr
from testnuc.errors import InvalidInputError
from testnuc.label_tree import flattened, is_nested
from testnuc.prompts.writing import text_json
from testnuc.records import text_of
from testnuc.types import split_labels

_TABLES = {".csv", ".tsv", ".jsonl", ".parquet", ".xlsx"}
_YAML = {".yaml", ".yml"}
_LISTS = {".txt", ".json", *_YAML}
#: Characters of labels in YAML, whose reader takes a second for 100,000.
_LONGEST_YAML = 1_000_000
#: Levels of YAML: its reader takes a second for a thousand.
_DEEPEST = 100
_NAME, _DESCRIPTION = "label", "description"
#: Names that a label had before: a list, or in one cell, separated as several labels of a text are.
_WAS = "was"


def read_labels(given: str | list[str] | dict[str, str]) -> list[str] | dict[str, str]:
    """Read labels from a file, or from a list separated by commas; if read already, return them."""
    if not isinstance(given, str):
        return given
    if given.lstrip()[:1] in {"[", "{"}:
        # from a settings file or the environment
        return _labels(_parsed(given, "labels", ".json"), "labels")
    kind = Path(given).suffix.lower()
    # not Path.is_file, which raises for a list that is longer than a file name can be
    if kind not in _TABLES | _LISTS and not os.path.isfile(given):  # noqa: PTH113
        found = [label for part in given.split(",") if (label := part.strip())]
        if len(found) == 1 and "," not in given:
            raise InvalidInputError(
                f"--labels {given}: there is no such file, and it is one label; give a file, or at "
                "least two labels: a,b"
            )
        return found
    held = _held(given)
    labels = _labels(held, given)
    if len(labels) < len(held):
        to_stderr(f"note: {given} names {len(labels):,} different labels in {len(held):,} rows")
    return labels


def _held(file: str, *, quiet: bool = False) -> Any:
    """Return what a file of labels holds: rows, a list, or a mapping."""
    kind = Path(file).suffix.lower()
    if kind in _TABLES:
        table = read_table(file, _NAME, option=None, quiet=quiet)
        named = (row for row in table.rows if (text_of(row.get(_NAME)) or "").strip())
        return [{name: row.get(name) for name in table.columns} for row in named]
    content = content_of(file)[0]
    if kind in {".json", *_YAML}:
        return _parsed(content, file, kind)
    return [label for line in content.splitlines() if (label := line.strip())]


def read_former(given: Any) -> dict[str, list[str]]:
    """Return label -> its names before, of a file of labels whose rows name them in `was`."""
    if not isinstance(given, str) or not os.path.isfile(given):  # noqa: PTH113
        return {}
    rows = _held(given, quiet=True)
    former: dict[str, list[str]] = {}
    for row in rows if isinstance(rows, list) else ():
        was = row.get(_WAS) if isinstance(row, dict) else None
        names = was if isinstance(was, list) else split_labels(text_of(was))
        if names:
            former.setdefault(str(row.get(_NAME)).strip(), []).extend(str(n).strip() for n in names)
    return former


def write_labels(
    path: str, labels: Mapping[str, str], examples: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Write labels with their descriptions, to a .json file or, with examples, a .yaml file."""
    if Path(path).suffix.lower() in _YAML:
        lines = []
        for name, description in labels.items():
            # a string of JSON is one of YAML
            lines.append(text_json(name) + b": " + text_json(description) + b"\n")
            lines += [b"  # " + text_json(text) + b"\n" for text in (examples or {}).get(name, ())]
        write_whole(path, lines)
        return
    plain = dict(labels) if any(labels.values()) else list(labels)
    write_whole(path, [orjson.dumps(plain, option=orjson.OPT_INDENT_2)])


def _labels(value: Any, source: str) -> list[str] | dict[str, str]:
    """Return labels given as a list of strings or objects, or as label -> description or labels."""
    if isinstance(value, dict):
        # a nested one is a tree of labels
        return flattened(value) if is_nested(value) else value
    if not isinstance(value, list):
        raise InvalidInputError(f"{source} holds a single value; give a list or an object")
    if not any(isinstance(item, dict) for item in value):
        return value
    found: dict[str, str] = {}
    for item in value:
        record = item if isinstance(item, dict) else {_NAME: item}
        remedy = f"name the columns {_NAME} and {_DESCRIPTION}"
        require_column(source, list(map(str, record)), _NAME, remedy)
        label, description = (_text(record.get(key, ""), source) for key in (_NAME, _DESCRIPTION))
        if found.get(label) and description and found[label] != description:
            raise InvalidInputError(f"{source} has two descriptions of {label!r}; leave one out")
        found[label] = description or found.get(label, "")
    return found if any(found.values()) else list(found)


def _text(value: Any, source: str) -> str:
    """Return a cell as text; raises InvalidInputError for what is none."""
    if isinstance(value, bool | list | dict):
        raise InvalidInputError(f"{source} holds {value!r:.60}; labels and descriptions are text")
    return (text_of(value) or "").strip()


def _once(pairs: list[tuple[str, Any]], name: str) -> dict[str, Any]:
    """Return a mapping; of equal keys the last would replace the others, and all below them."""
    made = dict(pairs)
    if len(made) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise InvalidInputError(f"{name} has {twice!r} twice in one place; join them")
    return made


def _parsed(content: str, name: str, kind: str) -> Any:
    """Return what a JSON or YAML file holds."""
    try:
        if kind in _YAML:
            return _yaml(content, name)
        once = partial(_once, name=name)
        # numbers are strings, as in YAML
        return json.loads(content, object_pairs_hook=once, parse_int=str, parse_float=str)
    except json.JSONDecodeError as exc:
        raise InvalidInputError(f"{name} is not JSON: {exc}") from exc
    except RecursionError as exc:
        raise InvalidInputError(f"{name} is nested too deep; give fewer levels") from exc


def _yaml(content: str, name: str) -> Any:
    with needing(f"{name} needs PyYAML: pip install 'testnuc[yaml]', or give a .json or .csv file"):
        import yaml
    if len(content) > _LONGEST_YAML:
        raise InvalidInputError(
            f"{name} has {len(content):,} characters, and labels in YAML may have "
            f"{_LONGEST_YAML:,}; give a .json or .csv file"
        )

    def plain(node: Any) -> Any:
        # every scalar is a string: the label `no` is not false
        if isinstance(node, yaml.MappingNode):
            if any(not isinstance(key, yaml.ScalarNode) for key, _ in node.value):
                raise yaml.YAMLError("a label is a list or a mapping")
            return _once([(key.value, plain(value)) for key, value in node.value], name)
        return list(map(plain, node.value)) if isinstance(node, yaml.SequenceNode) else node.value

    depth, loader = 0, getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        for event in yaml.parse(content, Loader=loader):
            if isinstance(event, yaml.AliasEvent):
                # a few lines of them can stand for any number of labels
                raise InvalidInputError(
                    f"{name}, line {event.start_mark.line + 1}: *{event.anchor} is an alias, which "
                    "labels may not have; write out what it stands for"
                )
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise RecursionError
        node = yaml.compose(content, Loader=loader)
        return None if node is None else plain(node)
    except (yaml.YAMLError, UnicodeError) as exc:
        raise InvalidInputError(f"{name} is not YAML: {exc}") from exc
