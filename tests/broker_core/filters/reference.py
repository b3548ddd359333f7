"""A slow and simple evaluator of filter trees, written from docs/filters.md, as a reference for the real one.

It compares arrays pair by pair and shares no code with broker_core.filters.
"""

from __future__ import annotations

import math
import operator
import re
from fractions import Fraction
from typing import Any

from broker_core.filters import nodes as n

TESTS: dict[str, Any] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def matches(node: n.Node, message: Any) -> bool:
    return condition(node, message) is True


def condition(node: n.Node, message: Any) -> bool | None:
    """A node as TRUE, FALSE or unknown."""
    match node:
        case n.And(parts):
            found = [condition(part, message) for part in parts]
            return False if False in found else None if None in found else True
        case n.Or(parts):
            found = [condition(part, message) for part in parts]
            return True if True in found else None if None in found else False
        case n.Not(part):
            inner = condition(part, message)
            return None if inner is None else not inner
        case n.Comparison(sign, left, right):
            return pairwise(sign, value(left, message), value(right, message))
        case n.Between(inside, low, high):
            both = (n.Comparison(">=", inside, low), n.Comparison("<=", inside, high))
            return condition(n.And(both), message)
        case n.InList(inside, items):
            return condition(n.Or(tuple(n.Comparison("=", inside, item) for item in items)), message)
        case n.LikeCondition(inside, pattern):
            return strongest([matches_like(element, pattern) for element in elements(value(inside, message))])
        case n.IsNull(inside):
            return first(value(inside, message)) is None
        case _:
            found = as_number(value(node, message))
            return None if found is None else found != 0


def value(node: n.Node, message: Any) -> Any:
    match node:
        case n.Constant(constant):
            return constant
        case n.FieldPath(steps):
            return follow(message, steps)
        case n.UnaryMinus(part):
            return arithmetic("-", 0, as_number(value(part, message)))
        case n.Arithmetic(start, rest):
            result = as_number(value(start, message))
            for sign, part in rest:
                result = arithmetic(sign, result, as_number(value(part, message)))
            return result
        case _:
            return condition(node, message)


def follow(inside: Any, steps: tuple[Any, ...]) -> Any:
    if not steps:
        return inside
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        return follow(inside[step], rest) if isinstance(inside, list) and step < len(inside) else None
    if isinstance(inside, list):
        reached: list[Any] = []
        for element in elements(inside):
            if isinstance(element, dict) and step in element:
                reached.append(element[step])
        return follow_each(reached, rest)
    return follow(inside[step], rest) if isinstance(inside, dict) and step in inside else None


def follow_each(reached: list[Any], steps: tuple[Any, ...]) -> list[Any]:
    """Apply each further step of a path to every element that was reached through an array."""
    for step in steps:
        if isinstance(step, int):
            reached = [one[step] for one in reached if isinstance(one, list) and step < len(one)]
        else:
            spread = [
                element for one in reached for element in (elements(one) if isinstance(one, list) else [one])
            ]
            reached = [one[step] for one in spread if isinstance(one, dict) and step in one]
    return reached


def elements(one: Any) -> list[Any]:
    if not isinstance(one, list):
        return [one]
    return [inner for element in one for inner in elements(element)]


def strongest(found: list[bool | None]) -> bool | None:
    return True if True in found else None if None in found or not found else False


def pairwise(sign: str, left: Any, right: Any) -> bool | None:
    ones, others = elements(left) or [None], elements(right) or [None]
    return strongest([compare(sign, one, other) for one in ones for other in others])


def compare(sign: str, left: Any, right: Any) -> bool | None:
    for one in (left, right):
        if one is None or one == "" or isinstance(one, dict):
            return None
    if isinstance(left, str) and isinstance(right, str):
        return bool(TESTS[sign](left, right))
    one, other = number(left), number(right)
    if one is None:
        one, other = 1, 0
    elif other is None:
        one, other = 0, 1
    return bool(TESTS[sign](one, other))


def number(one: Any) -> Any:
    if not isinstance(one, str):
        return one
    if len(one) > 64 or not re.fullmatch(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", one, re.ASCII):
        return None
    exact = float(one)
    if math.isinf(exact):
        return None
    whole = re.fullmatch(r"\s*[+-]?\d+\s*", one, re.ASCII)
    return int(one) if whole and abs(int(one)) < 2**64 else exact


def first(one: Any) -> Any:
    while isinstance(one, list):
        if not one:
            return None
        one = one[0]
    return None if one == "" else one


def as_number(one: Any) -> Any:
    one = first(one)
    return None if one is None or isinstance(one, dict) else number(one)


def arithmetic(sign: str, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    if sign in "/%" and right == 0:
        return None
    if isinstance(left, int) and isinstance(right, int):
        exact = {"+": left + right, "-": left - right, "*": left * right}.get(sign)
        if sign == "%":
            exact = left - right * int(Fraction(left, right))
        if exact is not None:
            return exact if abs(exact) < 2**64 else float(exact)
    if sign == "%":
        result = math.fmod(left, right)
    else:
        result = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}[sign](
            left, right
        )
    return result if math.isfinite(result) else None


def matches_like(one: Any, pattern: str) -> bool | None:
    if one is None or one == "" or isinstance(one, dict):
        return None
    text = (
        one
        if isinstance(one, str)
        else {True: "true", False: "false"}[one]
        if isinstance(one, bool)
        else repr(one)
    )
    return re.search(pattern.replace("$", r"\Z"), text) is not None
