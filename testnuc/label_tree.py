"""Labels in a tree: every label is a path such as ``"refund > late"``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from testnuc._base.arrays import Int32s
from testnuc._base.display import shown
from testnuc.errors import InvalidInputError
from testnuc.types import LEVELS

#: Levels of nested labels; deeper ones would exhaust the stack.
_DEEPEST = 32


class LabelTree(Mapping[str, str]):
    """Labels in a tree, as a mapping of paths to descriptions.

    Give it, or what it is made of, as the labels of a client. A text gets a label at the end of a
    path; each `Classification` then has a `path`, with a trust for each level.

    Parameters
    ----------
    labels : mapping or sequence
        Paths, as ``["refund > late", "refund > twice", "card"]``, or path -> description; or
        nested: name -> the labels below it, as a mapping or a list, or the description of a label.

    Raises
    ------
    InvalidInputError
        A value is neither labels nor a description, or a name is blank.

    Examples
    --------
    >>> tree = LabelTree({"refund": {"late": "Not there after 5 days.", "twice": None}, "card": ""})
    >>> list(tree), tree.depth
    (['refund > late', 'refund > twice', 'card'], 2)
    >>> tree.children(("refund",))
    [('refund', 'late'), ('refund', 'twice')]
    """

    def __init__(self, labels: Mapping[str, Any] | Sequence[Any]) -> None:
        self._described = flattened(labels)
        #: The path of each label.
        self.paths = tuple(map(path_of, self._described))
        # dicts without values are sets in order
        self._children: dict[tuple[str, ...], dict[tuple[str, ...], None]] = {}
        for path in self.paths:
            for level in range(len(path)):
                self._children.setdefault(path[:level], {})[path[: level + 1]] = None
        for path in self.paths:
            if path in self._children:
                self._children[path] = {path: None, **self._children[path]}
        self._nodes: dict[int, Int32s] = {}

    @classmethod
    def of(cls, names: Sequence[str]) -> Self | None:
        """Return the tree of labels; None: none has two labels below it."""
        if not any(LEVELS in name for name in names):
            return None
        tree = cls(list(names))
        parents = (tree.children(node) for node in tree.parents())
        return tree if any(len(below) > 1 for below in parents) else None

    @property
    def depth(self) -> int:
        """The number of levels."""
        return max(map(len, self.paths), default=0)

    def parents(self) -> list[tuple[str, ...]]:
        """Return the nodes with labels below them, without the root."""
        return [node for node in self._children if node]

    def children(self, node: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        """Return the nodes right below a node, in order; one that is a label comes first itself."""
        return list(self._children.get(node, ()))

    def nodes(self, level: int) -> Int32s:
        """Return a number for the node of each label at a level, int32[C].

        A label whose path is shorter is its own node. The top level is 1.
        """
        if level not in self._nodes:
            known: dict[tuple[str, ...], int] = {}
            made = [known.setdefault(path[:level], len(known)) for path in self.paths]
            self._nodes[level] = np.array(made, dtype=np.int32)
        return self._nodes[level]

    def __getitem__(self, label: str) -> str:
        return self._described[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self._described)

    def __len__(self) -> int:
        return len(self._described)

    def __repr__(self) -> str:
        return f"LabelTree({len(self)} labels, {self.depth} levels)"


def path_of(label: str) -> tuple[str, ...]:
    """Return the path of a label: its names, from the top level on."""
    parts = tuple(label.split(LEVELS))
    # a separator without names is part of a name
    return parts if all(part.strip() for part in parts) else (label,)


def is_nested(labels: object) -> bool:
    """Whether labels are given as a nested mapping."""
    below = labels.values() if isinstance(labels, Mapping) else ()
    return any(isinstance(value, Mapping | list | tuple) for value in below)


def flattened(labels: Mapping[str, Any] | Sequence[Any]) -> dict[str, str]:
    """Return labels, as `LabelTree` takes them, as path -> description; "" without one."""
    found: dict[str, str] = {}
    for path, description in _walk(labels, ()):
        name = LEVELS.join(path)
        if name in found:
            raise InvalidInputError(f"the label {name!r} is given twice; remove one of them")
        found[name] = description
    return found


def _walk(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the paths below a node, with their descriptions."""
    at = f" below {LEVELS.join(path)!r}" if path else ""
    if len(path) > _DEEPEST:
        raise InvalidInputError(
            f"labels are nested deeper than {_DEEPEST} levels{at:.80}; give fewer levels"
        )
    if isinstance(value, Mapping):
        for name, below in value.items():
            _check(name, at)
            if below is None or isinstance(below, str):
                yield (*path, name), below or ""
            elif isinstance(below, Mapping | list | tuple) and below:
                yield from _walk(below, (*path, name))
            else:
                raise InvalidInputError(
                    f"the label {name!r}{at} has the value {below!r:.60}; give a description, or "
                    "the labels below it as a mapping or a list"
                )
        return
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidInputError(f"labels{at} are {value!r:.60}; give a mapping or a list")
    for item in value:
        if isinstance(item, Mapping):
            yield from _walk(item, path)
        else:
            _check(item, at)
            yield (*path, item), ""


def _check(name: object, at: str) -> None:
    if not isinstance(name, str) or not name.strip():
        raise InvalidInputError(f"label {shown(name)}{at} is blank or not a string; name it")
