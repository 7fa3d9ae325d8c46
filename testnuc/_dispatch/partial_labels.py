"""Some of many labels: those of a shortlist, or of a level of their tree."""

from collections.abc import Sequence

from testnuc.labels import LabelSet
from testnuc.types import LEVELS

#: The label that means none of some labels, if the user's labels have none.
NONE_OF_THESE = "none of these"
#: Names below a node of the tree that describe it.
_SUCH_AS = 3


def part_of(whole: LabelSet, shown: Sequence[int]) -> LabelSet:
    """Return some of the labels, and one that means "none of these"."""
    return _made({whole.names[i]: whole.descriptions.get(whole.names[i], "") for i in shown}, whole)


def longest_part(whole: LabelSet, n: int) -> LabelSet:
    """Return the n longest labels, in their order."""
    names, described = whole.names, whole.descriptions
    places = [i for i, name in enumerate(names) if name != whole.none_label]
    places.sort(key=lambda i: -len(names[i]) - len(described.get(names[i], "")))
    return part_of(whole, sorted(places[:n]))


def level_sets(whole: LabelSet) -> dict[tuple[str, ...], LabelSet]:
    """Return the labels of each call of a tree of labels, by the node that was chosen before."""
    tree = whole.tree
    assert tree is not None
    below = {node: tree.children(node) for node in [(), *tree.parents()]}
    return {
        node: _made({LEVELS.join(child): _about(whole, child, node) for child in children}, whole)
        for node, children in below.items()
        if len(children) > 1
    }


def _about(whole: LabelSet, child: tuple[str, ...], node: tuple[str, ...]) -> str:
    """Describe a node: by its description, or by what is below it."""
    assert whole.tree is not None
    below = [path[-1] for path in whole.tree.children(child) if path != child]
    if child == node or not below:
        return whole.descriptions.get(LEVELS.join(child), "")
    return f"such as {', '.join(below[:_SUCH_AS])}" + (", .." if len(below) > _SUCH_AS else "")


def _made(described: dict[str, str], whole: LabelSet) -> LabelSet:
    given = described if any(described.values()) else list(described)
    return LabelSet(given, none_label=whole.none_label or NONE_OF_THESE)
