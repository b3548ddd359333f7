"""Comparison and arithmetic of selectors, whose headers are texts and may be missing. No function raises.

missing header                 NULL; every condition on it is unknown, except IS NULL
header that reads as a number  a number, when compared with a number or with another such header
header "true" or "FALSE"       TRUE or FALSE in any case, when compared with one or used as a condition
'text'                         text: '1.10' = '1.1' is false; < compares characters unless both are
numbers
values of different types      no comparison of them is true, not even <> (JMS)
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final

Number = int | Decimal
Value = str | Number | bool | None
Verdict = bool | None
MAX_NUMBER_CHARACTERS: Final = 64
"""Maximum length of a header that is a number."""
_ARITHMETIC: Final = Context(prec=50, traps=[DivisionByZero, InvalidOperation, Overflow])
"""Decimal arithmetic. Comparisons are exact; results are rounded to 50 digits."""
_NUMBER_LETTERS: Final = frozenset("0123456789+-.eE")

COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": eq,
    "<>": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}


def to_number(value: Value) -> Number | None:
    """Return the value as a number, or None if it is none."""
    if isinstance(value, str):
        return _parse_number(value)
    return None if value is None or isinstance(value, bool) else value


def _parse_number(text: str) -> Number | None:
    if not text or len(text) > MAX_NUMBER_CHARACTERS or not _NUMBER_LETTERS.issuperset(text):
        return None
    try:
        return int(text) if text.lstrip("+-").isdecimal() else Decimal(text)
    except (ArithmeticError, ValueError):
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


def calculate(sign: str, left: Value, right: Value) -> Number | None:
    """Return the result of `left sign right`, or None (NULL) if it cannot be calculated.

    The quotient of two integers is an integer, rounded towards zero, as in Java.
    """
    one, other = to_number(left), to_number(right)
    if one is None or other is None:
        return None
    try:
        if isinstance(one, int) and isinstance(other, int):
            result = _calculate_integers(sign, one, other)
            # Products of products would grow without limit. Java's integers end at 64 bits too.
            return result if result.bit_length() <= 63 else _ARITHMETIC.create_decimal(result)
        return _DECIMAL[sign](one, other)
    except ArithmeticError:
        return None


def _calculate_integers(sign: str, one: int, other: int) -> int:
    match sign:
        case "+":
            return one + other
        case "-":
            return one - other
        case "*":
            return one * other
        case "/":
            quotient = abs(one) // abs(other)
            return quotient if (one < 0) == (other < 0) else -quotient
    remainder = abs(one) % abs(other)
    return remainder if one >= 0 else -remainder


_DECIMAL: Final[dict[str, Callable[[Any, Any], Decimal]]] = {
    "+": _ARITHMETIC.add,
    "-": _ARITHMETIC.subtract,
    "*": _ARITHMETIC.multiply,
    "/": _ARITHMETIC.divide,
    "%": _ARITHMETIC.remainder,
}
