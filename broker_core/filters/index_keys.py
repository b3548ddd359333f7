"""Guards: necessary conditions of filters, by which an index finds the matching ones among many.

A guard says that a message must have one of some values at a path, or a number beyond a limit. It is
necessary, not sufficient: `/symbol = 'X' AND /price > 5` is guarded by its first part, and the whole filter
is then evaluated. Equality is that of `filters.values`: a text and a number are equal if the text represents
the number.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker_core.filters import nodes
from broker_core.filters.tokens import Step
from broker_core.filters.values import Number

MAX_KEYS = 64
"""Maximum number of values of a guard. A filter with more has no guard."""
_BOUND_SIGNS: Final = {">": True, ">=": True, "<": False, "<=": False}


class RequiredKeys(NamedTuple):
    """Guard: the filter can only be TRUE if the value at `steps` equals one of `keys`.

    Without keys it never is.
    """

    steps: tuple[Step, ...]
    keys: tuple[str | Number, ...]


class RequiredBound(NamedTuple):
    """Guard: the filter can only be TRUE if the value at `steps` reaches the limit.

    `above` is True for a lower limit and False for an upper limit.
    """

    steps: tuple[Step, ...]
    above: bool
    limit: float


Guard = RequiredKeys | RequiredBound


def required_key(node: nodes.Node) -> Guard | None:
    """Return the guard of a filter, or None if it has none.

    Of several guards, the one with the fewest keys is returned. A limit is only returned if no guard has
    keys.
    """
    match node:
        case nodes.Comparison(sign, nodes.FieldPath(steps), nodes.Constant(value)):
            return _make_guard(sign, steps, value)
        case nodes.Comparison(sign, nodes.Constant(value), nodes.FieldPath(steps)):
            return _make_guard(nodes.MIRRORED[sign], steps, value)
        case nodes.InList(nodes.FieldPath(steps), items) if len(items) <= MAX_KEYS:
            literals = [item.value for item in items if isinstance(item, nodes.Constant)]
            return RequiredKeys(steps, _make_keys(literals)) if len(literals) == len(items) else None
        case nodes.Between(nodes.FieldPath(steps), nodes.Constant(low), _):
            return _make_guard(">=", steps, low)
        case nodes.And(parts):
            found = [guard for guard in map(required_key, parts) if guard is not None]
            return min(found, key=_selectivity) if found else None
        case _:
            return None


def _make_guard(sign: str, steps: tuple[Step, ...], literal: nodes.Literal) -> Guard | None:
    if sign == "=":
        return RequiredKeys(steps, _make_keys([literal]))
    if sign in _BOUND_SIGNS and isinstance(literal, int | float):
        try:
            return RequiredBound(steps, _BOUND_SIGNS[sign], float(literal))
        except OverflowError:
            return None
    return None


def _make_keys(literals: list[nodes.Literal]) -> tuple[str | Number, ...]:
    """Return the keys without duplicates, NULL and the empty text, which equals NULL.

    No value equals NULL.
    """
    return tuple(dict.fromkeys(literal for literal in literals if literal is not None and literal != ""))


def _selectivity(guard: Guard) -> float:
    return len(guard.keys) if isinstance(guard, RequiredKeys) else float("inf")
