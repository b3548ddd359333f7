"""Reads a field out of a decoded message: names go into objects, positions into arrays.

A name that meets an array goes on in each of its elements, so /items/price is every price. What isn't there
is NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from broker_core.filters.tokens import Step
from broker_core.filters.values import leaves


def getter(steps: tuple[Step, ...]) -> Callable[[Any], Any]:
    """A function from a message to the field's value."""
    if len(steps) == 1 and isinstance(steps[0], str):
        return _one_name(steps[0])

    def get(message: Any) -> Any:
        value = message
        for at, step in enumerate(steps):
            kind = type(value)
            if kind is dict:
                value = value.get(step)
            elif kind is list:
                if isinstance(step, str):
                    return _every(value, steps[at:])
                value = value[step] if step < len(value) else None
            else:
                return None
        return value

    return get


def _one_name(name: str) -> Callable[[Any], Any]:
    def get(message: Any) -> Any:
        if type(message) is dict:
            return message.get(name)
        return _every(message, (name,)) if type(message) is list else None

    return get


def _every(array: list[Any], steps: Sequence[Step]) -> list[Any]:
    """What the steps lead to from each element; elements that don't have it add nothing."""
    values = leaves(array)
    for step in steps:
        if isinstance(step, int):
            values = [value[step] for value in values if type(value) is list and step < len(value)]
        else:
            objects = leaves(values)
            values = [value[step] for value in objects if type(value) is dict and step in value]
    return values
