"""The tree of a filter, and its printed form: print → parse gives the same tree.

Chains are flat: `a AND b AND c` is one node with three parts, `a + b - c` is one node with a first part and
two more. So a long filter isn't a deep tree, and only parentheses, NOT and minus nest.

Nobody changes a node. They aren't frozen, which would make each cost twice as much, and every subscribe makes some.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_core.filters.tokens import Step, is_name_character

Literal = str | int | float | bool | None
MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The operator that says the same with the sides exchanged."""


@dataclass(slots=True, unsafe_hash=True)
class Path:
    """A field of the message: names, and positions in arrays."""

    steps: tuple[Step, ...]


@dataclass(slots=True, eq=False)
class Constant:
    """A number, a text, TRUE, FALSE or NULL. Numbers aren't negative: that is Negative of one."""

    value: Literal

    def __eq__(self, other: object) -> bool:
        # 1, 1.0 and TRUE are equal in Python and are different filters.
        return (
            isinstance(other, Constant)
            and type(other.value) is type(self.value)
            and other.value == self.value
        )

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


@dataclass(slots=True, unsafe_hash=True)
class Negative:
    """Minus before a value."""

    part: Node


@dataclass(slots=True, unsafe_hash=True)
class Arithmetic:
    """first op part op part …; the operators are all of + - or all of * / %."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclass(slots=True, unsafe_hash=True)
class Comparison:
    """left op right, with op one of = != < <= > >=."""

    operator: str
    left: Node
    right: Node


@dataclass(slots=True, unsafe_hash=True)
class Among:
    """value IN (items…)."""

    value: Node
    items: tuple[Node, ...]


@dataclass(slots=True, unsafe_hash=True)
class Between:
    """value BETWEEN low AND high, both included."""

    value: Node
    low: Node
    high: Node


@dataclass(slots=True, unsafe_hash=True)
class Like:
    """value LIKE pattern: the RE2 pattern is found somewhere in the value's text."""

    value: Node
    pattern: str


@dataclass(slots=True, unsafe_hash=True)
class IsNull:
    """value IS NULL."""

    value: Node


@dataclass(slots=True, unsafe_hash=True)
class Not:
    """NOT part. NOT IN, NOT LIKE, NOT BETWEEN and IS NOT NULL are NOT of the plain form."""

    part: Node


@dataclass(slots=True, unsafe_hash=True)
class And:
    """Two parts or more."""

    parts: tuple[Node, ...]


@dataclass(slots=True, unsafe_hash=True)
class Or:
    """Two parts or more."""

    parts: tuple[Node, ...]


Node = Path | Constant | Negative | Arithmetic | Comparison | Among | Between | Like | IsNull | Not | And | Or

_OR, _AND, _NOT, _TEST, _SUM, _PRODUCT, _UNARY, _ATOM = range(8)


def to_text(node: Node) -> str:
    """The filter in its normal form: keywords in capitals, single blanks, only the parentheses it needs."""
    return _print(node)[0]


def _wrapped(node: Node, least: int) -> str:
    text, level = _print(node)
    return text if level >= least else f"({text})"


def _print(node: Node) -> tuple[str, int]:
    """The text and how tightly its outermost operator binds."""
    match node:
        case Path(steps):
            return "".join(_step(step) for step in steps), _ATOM
        case Constant(value):
            return _constant(value), _ATOM
        case Negative(part):
            return f"-{_wrapped(part, _UNARY)}", _UNARY
        case Arithmetic(first, rest):
            level = _SUM if rest[0][0] in "+-" else _PRODUCT
            tail = "".join(f" {operator} {_wrapped(part, level + 1)}" for operator, part in rest)
            return _wrapped(first, level + 1) + tail, level
        case Not(part):
            return _print_not(part)
        case And(parts):
            return " AND ".join(_wrapped(part, _NOT) for part in parts), _AND
        case Or(parts):
            return " OR ".join(_wrapped(part, _AND) for part in parts), _OR
        case _:
            return _print_test(node, ""), _TEST


def _print_not(part: Node) -> tuple[str, int]:
    if isinstance(part, Among | Between | Like | IsNull):
        return _print_test(part, "NOT "), _TEST
    return f"NOT {_wrapped(part, _NOT)}", _NOT


def _print_test(node: Comparison | Among | Between | Like | IsNull, negation: str) -> str:
    match node:
        case Comparison(operator, left, right):
            return f"{_wrapped(left, _SUM)} {operator} {_wrapped(right, _SUM)}"
        case Among(value, items):
            return (
                f"{_wrapped(value, _SUM)} {negation}IN ({', '.join(_wrapped(item, _SUM) for item in items)})"
            )
        case Between(value, low, high):
            limits = f"{_wrapped(low, _SUM)} AND {_wrapped(high, _SUM)}"
            return f"{_wrapped(value, _SUM)} {negation}BETWEEN {limits}"
        case Like(value, pattern):
            return f"{_wrapped(value, _SUM)} {negation}LIKE {_quoted(pattern)}"
        case IsNull(value):
            return f"{_wrapped(value, _SUM)} IS {negation}NULL"


def _step(step: Step) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f"/{step}" if all(map(is_name_character, step)) else f"[/{step}]"


def _constant(value: Literal) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
