"""What a message must have to pass a filter: at a path, one of some values, or one beyond a limit. By it many filters are found at once.

A guard is necessary, not sufficient: `/symbol = 'X' AND /price > 5` is guarded by its first part, and whoever is found by that is tested
whole. Equality is that of `values`: a text and a number are equal when the text stands for the number.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker_core.filters import nodes
from broker_core.filters.tokens import Step
from broker_core.filters.values import Number

MAX_KEYS = 64
"""A filter that names more values is tested as one without a guard."""
_ABOVE: Final = {">": True, ">=": True, "<": False, "<=": False}


class RequiredKeys(NamedTuple):
    """What is at `steps` equals one of `keys`, or the filter isn't TRUE. No keys: it never is."""

    steps: tuple[Step, ...]
    keys: tuple[str | Number, ...]


class RequiredBound(NamedTuple):
    """What is at `steps` reaches the limit, from above or from below, or the filter isn't TRUE."""

    steps: tuple[Step, ...]
    above: bool
    limit: float


Guard = RequiredKeys | RequiredBound


def required_key(node: nodes.Node) -> Guard | None:
    """A filter's guard: of several the one with the fewest keys, and a limit where none has keys; None when there is none."""
    match node:
        case nodes.Comparison(sign, nodes.FieldPath(steps), nodes.Constant(value)):
            return _guard(sign, steps, value)
        case nodes.Comparison(sign, nodes.Constant(value), nodes.FieldPath(steps)):
            return _guard(nodes.MIRRORED[sign], steps, value)
        case nodes.InList(nodes.FieldPath(steps), items) if len(items) <= MAX_KEYS:
            literals = [item.value for item in items if isinstance(item, nodes.Constant)]
            return RequiredKeys(steps, _keys(literals)) if len(literals) == len(items) else None
        case nodes.Between(nodes.FieldPath(steps), nodes.Constant(low), _):
            return _guard(">=", steps, low)
        case nodes.And(parts):
            found = [guard for guard in map(required_key, parts) if guard is not None]
            return min(found, key=_leaves_how_many) if found else None
        case _:
            return None


def _guard(sign: str, steps: tuple[Step, ...], literal: nodes.Literal) -> Guard | None:
    if sign == "=":
        return RequiredKeys(steps, _keys([literal]))
    if sign in _ABOVE and isinstance(literal, int | float):
        try:
            return RequiredBound(steps, _ABOVE[sign], float(literal))
        except OverflowError:
            return None
    return None


def _keys(literals: list[nodes.Literal]) -> tuple[str | Number, ...]:
    """Without those that nothing equals: NULL, and the empty text, which is one."""
    return tuple(dict.fromkeys(literal for literal in literals if literal is not None and literal != ""))


def _leaves_how_many(guard: Guard) -> float:
    return len(guard.keys) if isinstance(guard, RequiredKeys) else float("inf")
