"""Syntax tree of a filter, and its normal form as text. Parsing the printed text gives an equal tree.

Chains are flat: `a AND b AND c` is one node with three parts, and `a + b - c` is one node with a first part
and two more. So a long filter is not a deep tree; only parentheses, NOT and minus are nested.

Nodes are msgspec structs rather than dataclasses for speed: every subscribe creates some and looks up an
equal tree.
"""

from __future__ import annotations

import msgspec

from broker_core.filters.tokens import Step, is_name_character

Literal = str | int | float | bool | None
MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""Comparison operator with the same meaning after its operands are exchanged."""


class _Node(msgspec.Struct, frozen=True):
    """Base class of nodes. Nodes are equal if their classes and parts are equal."""


class FieldPath(_Node, frozen=True):
    """Field of the message: names of fields, and positions in arrays."""

    steps: tuple[Step, ...]


class Constant(msgspec.Struct, frozen=True, eq=False):
    """Literal: a number, a text, TRUE, FALSE or NULL. Numbers are not negative; a minus is a UnaryMinus."""

    value: Literal

    def __eq__(self, other: object) -> bool:
        # 1, 1.0 and TRUE are equal in Python, but they are different filters.
        return (
            isinstance(other, Constant)
            and type(other.value) is type(self.value)
            and other.value == self.value
        )

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


class UnaryMinus(_Node, frozen=True):
    """Minus before a value."""

    part: Node


class Arithmetic(_Node, frozen=True):
    """Chain `first op part op part …`. Its operators are either all of + - or all of * / %."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


class Comparison(_Node, frozen=True):
    """Comparison `left op right`, with op one of = != < <= > >=."""

    operator: str
    left: Node
    right: Node


class InList(_Node, frozen=True):
    """Condition `value IN (items…)`."""

    value: Node
    items: tuple[Node, ...]


class Between(_Node, frozen=True):
    """Condition `value BETWEEN low AND high`, both inclusive."""

    value: Node
    low: Node
    high: Node


class LikeCondition(_Node, frozen=True):
    """Condition `value LIKE pattern`: the RE2 pattern matches anywhere in the value's text."""

    value: Node
    pattern: str


class IsNull(_Node, frozen=True):
    """Condition `value IS NULL`."""

    value: Node


class Not(_Node, frozen=True):
    """Negation of a condition. NOT IN, NOT LIKE, NOT BETWEEN and IS NOT NULL are parsed to this, too."""

    part: Node


class And(_Node, frozen=True):
    """Conjunction of two or more conditions."""

    parts: tuple[Node, ...]


class Or(_Node, frozen=True):
    """Disjunction of two or more conditions."""

    parts: tuple[Node, ...]


Node = (
    FieldPath
    | Constant
    | UnaryMinus
    | Arithmetic
    | Comparison
    | InList
    | Between
    | LikeCondition
    | IsNull
    | Not
    | And
    | Or
)

# Binding strength of operators, from loosest to tightest.
_OR, _AND, _NOT, _TEST, _SUM, _PRODUCT, _UNARY, _ATOM = range(8)


def format_node(node: Node) -> str:
    """Return the normal form of a filter: upper-case keywords, single blanks, few parentheses."""
    return _print(node)[0]


def _wrapped(node: Node, least: int) -> str:
    """Return the text of a node, in parentheses if it binds more loosely than `least`."""
    text, level = _print(node)
    return text if level >= least else f"({text})"


def _print(node: Node) -> tuple[str, int]:
    """Return the text of a node, and the binding strength of its outermost operator."""
    match node:
        case FieldPath(steps):
            return "".join(_step(step) for step in steps), _ATOM
        case Constant(value):
            return _constant(value), _ATOM
        case UnaryMinus(part):
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
    if isinstance(part, InList | Between | LikeCondition | IsNull):
        return _print_test(part, "NOT "), _TEST
    return f"NOT {_wrapped(part, _NOT)}", _NOT


def _print_test(node: Comparison | InList | Between | LikeCondition | IsNull, negation: str) -> str:
    match node:
        case Comparison(operator, left, right):
            return f"{_wrapped(left, _SUM)} {operator} {_wrapped(right, _SUM)}"
        case InList(value, items):
            return (
                f"{_wrapped(value, _SUM)} {negation}IN ({', '.join(_wrapped(item, _SUM) for item in items)})"
            )
        case Between(value, low, high):
            limits = f"{_wrapped(low, _SUM)} AND {_wrapped(high, _SUM)}"
            return f"{_wrapped(value, _SUM)} {negation}BETWEEN {limits}"
        case LikeCondition(value, pattern):
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
