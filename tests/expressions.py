"""The regular expressions of the package, and what in them can be slow."""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from re import _constants as sre
from re import _parser

import testnuc

PACKAGE = Path(testnuc.__file__).parent
#: Functions of a compiled expression that try it at one place of a text, and at each.
ANCHORED = {"match", "fullmatch"}
SEARCHING = {"search", "sub", "subn", "split", "findall", "finditer"}
#: A repeat of more is unbounded: what is tried again at each place is a factor.
BOUND = 200
MOST_PATHS = 2000
ALPHABET = frozenset(map(chr, range(128))) | set("\x85\u00e9\u0130\u0663\u2028\u65e5")
CATEGORIES = {
    sre.CATEGORY_DIGIT: str.isdigit,
    sre.CATEGORY_SPACE: str.isspace,
    sre.CATEGORY_WORD: lambda c: c.isalnum() or c == "_",
}
NEGATED = {
    sre.CATEGORY_NOT_DIGIT: sre.CATEGORY_DIGIT,
    sre.CATEGORY_NOT_SPACE: sre.CATEGORY_SPACE,
    sre.CATEGORY_NOT_WORD: sre.CATEGORY_WORD,
}


@dataclass(frozen=True)
class Expression:
    place: str
    pattern: str | bytes
    flags: int
    searched: bool

    def paths(self):
        """Return the ways through the expression, each a list of atoms."""
        pattern = self.pattern if isinstance(self.pattern, str) else self.pattern.decode("latin-1")
        tree = _parser.parse(pattern, self.flags & ~re.UNICODE)
        return list(islice(paths(tree, tree.state.flags | self.flags), MOST_PATHS))


@dataclass(frozen=True)
class Atom:
    """Some characters of a set, or a condition."""

    characters: frozenset[str]
    least: int = 1
    most: int = 1
    #: Why the repeated part can be matched in several ways, or "".
    ambiguous: str = ""
    #: Whether it is a condition, which can fail without reading.
    condition: bool = False
    #: Whether it can also be the end of the text, or is its beginning.
    end: bool = False
    begin: bool = False
    #: What it can begin with, if not with all of them.
    begins: frozenset[str] | None = None

    @property
    def first(self):
        return self.characters if self.begins is None else self.begins

    @property
    def unbounded(self):
        return self.most > BOUND


def expressions():
    """Return each expression once, and the places of those that could not be evaluated."""
    uses = {}
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        trees[path] = tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in ANCHORED | SEARCHING:
                name = node.value
                name = name.id if isinstance(name, ast.Name) else getattr(name, "attr", None)
                uses.setdefault(name, set()).add(node.attr)
    found, unknown = {}, []
    for path, tree in trees.items():
        place = path.relative_to(PACKAGE).as_posix()
        calls = [node for node in ast.walk(tree) if is_re(node)]
        if not calls:
            continue
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        module = importlib.import_module(".".join(p for p in parts if p != "__init__"))
        compiled = dict(named_patterns(module))
        for name, pattern in compiled.items():
            searched = not uses.get(name) or bool(uses[name] & SEARCHING)
            found[place, pattern.pattern, pattern.flags] = searched
        for node in calls:
            pattern, flags = evaluated(node, vars(module))
            if pattern is None:
                unknown.append(f"{place}:{node.lineno}")
            elif not any(pattern == known.pattern for known in compiled.values()):
                key = place, pattern, re.compile(pattern, flags).flags
                found.setdefault(key, node.func.attr not in ANCHORED)
    return [Expression(p, x, f, searched) for (p, x, f), searched in found.items()], unknown


def is_re(node):
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in ANCHORED | SEARCHING | {"compile"}
    )


def named_patterns(module):
    """Yield the compiled expressions of a module, those in its tables included."""
    pending = list(vars(module).items())
    while pending:
        name, value = pending.pop()
        if isinstance(value, re.Pattern):
            yield name, value
        elif isinstance(value, tuple | list) and not name.startswith("__"):
            pending += [(f"{name}[{i}]", inner) for i, inner in enumerate(value)]


def evaluated(node, names):
    """Return the pattern and flags of a call of `re`; what a function inserts is an "x"."""
    given = node.args[0]
    if isinstance(given, ast.JoinedStr):
        values = [
            part if isinstance(part, ast.Constant) or can(part, names) else ast.Constant("x")
            for part in given.values
        ]
        given = ast.copy_location(ast.JoinedStr(values), given)
    flags = [k.value for k in node.keywords if k.arg == "flags"]
    flags += node.args[1:2] if node.func.attr == "compile" else []
    try:
        return value_of(given, names), value_of(flags[0], names) if flags else 0
    except NameError:
        return None, 0


def can(part, names):
    try:
        value_of(ast.copy_location(ast.JoinedStr([part]), part), names)
    except NameError:
        return False
    return True


def value_of(node, names):
    expression = ast.fix_missing_locations(ast.Expression(node))
    return eval(compile(expression, "re", "eval"), dict(names))


# --- the ways through an expression ------------------------------------------------------------


def paths(sequence, flags):
    """Yield each way through a parsed sequence, as a list of atoms."""
    for way in product(*(list(ways(*item, flags)) for item in sequence)):
        yield [atom for atoms in way for atom in atoms]


def ways(kind, value, flags):
    """Return the ways through one node, each a list of atoms."""
    if kind in {sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN}:
        return [[Atom(characters(kind, value, flags))]]
    if kind is sre.BRANCH:
        return branches(value[1], flags)
    if kind is sre.SUBPATTERN:
        return list(paths(value[3], (flags | value[1]) & ~value[2]))
    if kind is sre.ATOMIC_GROUP:
        return list(paths(value, flags))
    if kind in {sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT}:
        least, most, body = value
        if most == 1:
            return [*([[]] if least == 0 else []), *paths(body, flags)]
        inner = list(paths(body, flags))
        reasons = "" if kind is sre.POSSESSIVE_REPEAT else ambiguity(inner)
        whole = frozenset().union(*(atom.characters for way in inner for atom in way))
        begins = frozenset().union(*(way[0].first for way in inner if way))
        return [[Atom(whole, least, int(most), reasons, begins=begins)]]
    if kind in {sre.ASSERT, sre.ASSERT_NOT}:
        if value[0] < 0:
            return [[Atom(frozenset(), 0, 0, condition=True)]]
        # what follows is read, too
        return [[*way, Atom(frozenset(), condition=True)] for way in paths(value[1], flags)]
    if kind is sre.AT:
        begin = value in {sre.AT_BEGINNING, sre.AT_BEGINNING_STRING} and not flags & re.MULTILINE
        end = value is sre.AT_END_STRING
        return [[Atom(frozenset(), 0, 0, condition=True, end=end, begin=begin)]]
    if kind is sre.GROUPREF:
        return [[Atom(ALPHABET, 0)]]
    message = f"{kind} is not known here"
    raise NotImplementedError(message)


def branches(alternatives, flags):
    """Return the ways through alternatives; a character or the end of the text is one atom."""
    found = [way for one in alternatives for way in paths(one, flags)]
    if len(found) == 2 and [len(way) for way in found] == [1, 1]:
        (one,), (other,) = found
        if other.end and not one.condition and one.least == one.most == 1:
            return [[Atom(one.characters, end=True)]]
    return found


def ambiguity(inner):
    """Return why a repeated part can match one text in several ways; "" if it cannot."""
    for way in inner:
        if not any(atom.least for atom in way):
            return "what is repeated can be empty"
        varying = any(atom.least != atom.most for atom in way)
        if varying and not (is_mark(way[0], way[1:]) or is_mark(way[-1], way[:-1])):
            return "a repeat in a repeat"
        if any(atom.ambiguous or adjacent(atom, way[i + 1 :]) for i, atom in enumerate(way)):
            return "a repeat in a repeat"
    if not all(differ(one, other) for i, one in enumerate(inner) for other in inner[i + 1 :]):
        return "repeated alternatives begin alike"
    return ""


def is_mark(atom, others):
    """Whether an atom is always there, and nothing else takes it: repetitions can be counted."""
    fixed = atom.least == atom.most and atom.characters
    return fixed and not any(atom.characters & other.characters for other in others)


def differ(one, other):
    """Whether two ways differ in a character before anything varies."""
    for a, b in zip(one, other, strict=False):
        if not a.first & b.first:
            return True
        if not a.least == a.most == b.least == b.most:
            return False
    return False


def characters(kind, value, flags):
    """Return the characters of the alphabet that a node of one character matches."""
    if kind is sre.ANY:
        return ALPHABET if flags & re.DOTALL else ALPHABET - {"\n"}
    if kind is sre.IN:
        negated = value[0][0] is sre.NEGATE
        found = frozenset().union(*(of_item(*item, flags) for item in value[negated:]))
        return ALPHABET - found if negated else found
    found = of_item(sre.LITERAL, value, flags)
    return ALPHABET - found if kind is sre.NOT_LITERAL else found


def of_item(kind, value, flags):
    if kind is sre.CATEGORY:
        if value in NEGATED:
            return ALPHABET - of_item(kind, NEGATED[value], flags)
        return frozenset(filter(CATEGORIES[value], ALPHABET))
    first, last = value if kind is sre.RANGE else (value, value)
    found = {c for c in ALPHABET if first <= ord(c) <= last}
    found |= {chr(first)} if kind is sre.LITERAL else set()
    if flags & re.IGNORECASE:
        found |= {c.lower() for c in found} | {c.upper() for c in found}
    return frozenset(found)


# --- what is slow ------------------------------------------------------------------------------


def slow(expression):
    """Yield why the time of an expression can grow faster than its input."""
    for way in expression.paths():
        for i, atom in enumerate(way):
            if not atom.unbounded:
                continue
            if atom.ambiguous:
                yield atom.ambiguous
            if adjacent(atom, way[i + 1 :]):
                yield "two repeats that can share characters"
            if expression.searched and restarts(atom, way[:i], way[i + 1 :]):
                yield "a search that reads the same characters again from each start"


def adjacent(atom, after):
    """Whether a later repeat can take what this one takes: where they meet is tried everywhere."""
    for other in after:
        if other.condition and not other.characters:
            continue
        if not other.first & atom.characters:
            if other.least:
                return False
        elif other.unbounded:
            return True
    return False


def restarts(atom, before, after):
    """Whether the expression can begin within a repeat, read to its end, and fail there."""
    if any(b.begin for b in before):
        return False
    if any(b.least and not b.characters & atom.characters for b in before if not b.condition):
        return False
    if not after:
        return False
    follows = after[0]
    if follows.end and follows.characters >= ALPHABET - atom.characters:
        return False
    return any(a.least or a.condition for a in after)
