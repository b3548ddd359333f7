"""What a message must have to pass a filter: at a path, one of some values. By it many filters are found at once.

A guard is necessary, not sufficient: `/symbol = 'X' AND /price > 5` is guarded by its first part, and whoever is found by that is tested
whole. Equality is that of `values`: a text and a number are equal when the text stands for the number.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_core.filters import nodes
from broker_core.filters.tokens import Step
from broker_core.filters.values import Number

MOST_KEYS = 64
"""A filter that names more values is tested as one without a guard."""


class Guard(NamedTuple):
    """What is at `steps` equals one of `keys`, or the filter isn't TRUE. No keys: it never is."""

    steps: tuple[Step, ...]
    keys: tuple[str | Number, ...]


def guard_of(node: nodes.Node) -> Guard | None:
    """A filter's guard, the one with the fewest keys; None when there is none."""
    match node:
        case nodes.Comparison("=", nodes.Path(steps), nodes.Constant(value)):
            return Guard(steps, _keys([value]))
        case nodes.Comparison("=", nodes.Constant(value), nodes.Path(steps)):
            return Guard(steps, _keys([value]))
        case nodes.Among(nodes.Path(steps), items) if len(items) <= MOST_KEYS:
            literals = [item.value for item in items if isinstance(item, nodes.Constant)]
            return Guard(steps, _keys(literals)) if len(literals) == len(items) else None
        case nodes.And(parts):
            found = [guard for guard in map(guard_of, parts) if guard is not None]
            return min(found, key=lambda guard: len(guard.keys)) if found else None
        case _:
            return None


def _keys(literals: list[nodes.Literal]) -> tuple[str | Number, ...]:
    """Without those that nothing equals: NULL, and the empty text, which is one."""
    return tuple(dict.fromkeys(literal for literal in literals if literal is not None and literal != ""))
