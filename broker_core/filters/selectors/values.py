"""Comparison and arithmetic of selectors, whose headers are texts and may be missing. No function raises.

missing header                 NULL; every condition on it is unknown, except IS NULL
header that reads as a number  a number, when compared with a number or with another such header
header "true" or "FALSE"       TRUE or FALSE in any case, when compared with one or used as a condition
'text'                         text: '1.10' = '1.1' is false; < compares characters unless both are
numbers
values of different types      no comparison of them is true, not even <> (JMS)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final

Value = str | int | float | bool | None
Verdict = bool | None
_MAX_DIGITS: Final = 18
_NUMBER_LETTERS: Final = frozenset("0123456789+-.eE")

COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": eq,
    "<>": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}


def to_number(value: Value) -> int | float | None:
    """Return the value as a number, or None if it is none."""
    if isinstance(value, str):
        return _parse_number(value)
    return None if value is None or isinstance(value, bool) else value


def _parse_number(text: str) -> int | float | None:
    if not text or len(text) > 64 or not _NUMBER_LETTERS.issuperset(text):
        return None
    try:
        return int(text) if len(text) <= _MAX_DIGITS and text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        return None


def to_condition(value: Value) -> Verdict:
    """Return the value as a condition: TRUE, FALSE or unknown (None)."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return None


def compare(sign: str, left: Value, right: Value, by_letters: bool) -> Verdict:
    """Return the result of `left sign right`, or None if it is unknown.

    `by_letters` says that one operand is a quoted text, so that = and <> compare characters.
    """
    if left is None or right is None:
        return None
    test = COMPARE[sign]
    if isinstance(left, bool) or isinstance(right, bool):
        first, second = to_condition(left), to_condition(right)
        if first is None or second is None or sign not in ("=", "<>"):
            return False
        return test(first, second)
    texts = isinstance(left, str) and isinstance(right, str)
    if texts and by_letters and sign in ("=", "<>"):
        return test(left, right)
    one, other = to_number(left), to_number(right)
    if one is not None and other is not None:
        return test(one, other)
    return test(left, right) if texts else False


def calculate(sign: str, left: Value, right: Value) -> int | float | None:
    """Return the result of `left sign right`, or None (NULL) if it cannot be calculated.

    The quotient of two integers is an integer, rounded towards zero, as in Java.
    """
    one, other = to_number(left), to_number(right)
    if one is None or other is None:
        return None
    try:
        match sign:
            case "+":
                result = one + other
            case "-":
                result = one - other
            case "*":
                result = one * other
            case "/":
                result = _divide(one, other)
            case _:
                result = math.fmod(one, other)
                result = int(result) if isinstance(one, int) and isinstance(other, int) else result
    except (ArithmeticError, ValueError):
        return None
    # Convert large integers to float: products of products would grow without limit. Java's are not exact
    # beyond 64 bits either.
    return (
        float(result)
        if isinstance(result, int) and result.bit_length() > 63 and result.bit_length() < 1_000
        else result
    )


def _divide(one: int | float, other: int | float) -> int | float:
    if isinstance(one, int) and isinstance(other, int):
        quotient = abs(one) // abs(other)
        return quotient if (one < 0) == (other < 0) else -quotient
    return one / other
