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
    operands: tuple[tuple[str, Node], ...]


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
    return _format_bare(node)[0]


def _wrap(node: Node, least: int) -> str:
    """Return the text of a node, in parentheses if it binds more loosely than `least`."""
    text, level = _format_bare(node)
    return text if level >= least else f"({text})"


def _format_bare(node: Node) -> tuple[str, int]:
    """Return the text of a node, and the binding strength of its outermost operator."""
    match node:
        case FieldPath(steps):
            return "".join(_format_step(step) for step in steps), _ATOM
        case Constant(value):
            return _format_constant(value), _ATOM
        case UnaryMinus(part):
            return f"-{_wrap(part, _UNARY)}", _UNARY
        case Arithmetic(first, rest):
            level = _SUM if rest[0][0] in "+-" else _PRODUCT
            tail = "".join(f" {operator} {_wrap(part, level + 1)}" for operator, part in rest)
            return _wrap(first, level + 1) + tail, level
        case Not(part):
            return _format_not(part)
        case And(parts):
            return " AND ".join(_wrap(part, _NOT) for part in parts), _AND
        case Or(parts):
            return " OR ".join(_wrap(part, _AND) for part in parts), _OR
        case _:
            return _format_test(node, ""), _TEST


def _format_not(part: Node) -> tuple[str, int]:
    if isinstance(part, InList | Between | LikeCondition | IsNull):
        return _format_test(part, "NOT "), _TEST
    return f"NOT {_wrap(part, _NOT)}", _NOT


def _format_test(node: Comparison | InList | Between | LikeCondition | IsNull, negation: str) -> str:
    match node:
        case Comparison(operator, left, right):
            return f"{_wrap(left, _SUM)} {operator} {_wrap(right, _SUM)}"
        case InList(value, items):
            return f"{_wrap(value, _SUM)} {negation}IN ({', '.join(_wrap(item, _SUM) for item in items)})"
        case Between(value, low, high):
            limits = f"{_wrap(low, _SUM)} AND {_wrap(high, _SUM)}"
            return f"{_wrap(value, _SUM)} {negation}BETWEEN {limits}"
        case LikeCondition(value, pattern):
            return f"{_wrap(value, _SUM)} {negation}LIKE {_quote(pattern)}"
        case IsNull(value):
            return f"{_wrap(value, _SUM)} IS {negation}NULL"


def _format_step(step: Step) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f"/{step}" if all(map(is_name_character, step)) else f"[/{step}]"


def _format_constant(value: Literal) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return _quote(value) if isinstance(value, str) else repr(value)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
