"""Values in filters: NULL, conversion, comparison with three results, arithmetic, and access to fields.

A value is what orjson decodes: text, number, boolean, NULL, array or object. As in AMPS:

* NULL is a missing field, null, the empty text or the empty array. An object has no value to compare:
  comparisons with it are unknown, yet it IS NOT NULL.
* Two texts compare as texts, two numbers as numbers (TRUE is 1, FALSE is 0). For a text and a number, the
  text is converted; a text that is no number is greater than any number.
* A condition on an array is TRUE if it is TRUE for any element. Arithmetic uses the first element.
* A result is True, False or None (unknown). No function here raises, whatever the values are.

Field access: names select members of objects, and positions select elements of arrays. A name applied to an
array is applied to each element, so /items/price is the array of all prices. A missing field is NULL.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from broker_core.filters.tokens import Step

Verdict = bool | None
Number = int | float

OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_DECIMAL = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*", re.ASCII)
_MAX_NUMBER_CHARACTERS = 64
"""Maximum length of a text that is converted to a number. Conversion takes more than linear time."""
_INTEGERS: Final = 2**64
_EXACT_DIGITS: Final = 15
"""Digits that floating point represents exactly."""


def parse_decimal(text: str) -> Number | None:
    """Return the number that a text represents in decimal notation, or None."""
    if len(text) > _MAX_NUMBER_CHARACTERS or _DECIMAL.fullmatch(text) is None:
        return None
    try:
        return _limit_number(int(text))
    except ValueError:
        return _to_integer(text) or _to_finite(float(text))


def _to_integer(text: str) -> int | None:
    """Return a text such as 1234567890123456789.0 as an integer, which floating point couldn't be."""
    if len(text) <= _EXACT_DIGITS:
        return None
    number = Decimal(text.strip())
    if abs(number) >= _INTEGERS or number != number.to_integral_value():
        return None
    return int(number)


def flatten_array(array: list[Any]) -> list[Any]:
    """Return the elements of an array, with those of nested arrays, in order."""
    if not any(type(element) is list for element in array):
        return array
    found: list[Any] = []
    waiting = array[::-1]
    while waiting:
        element = waiting.pop()
        if type(element) is list:
            waiting += element[::-1]
        else:
            found.append(element)
    return found


def to_scalar(value: Any) -> Any:
    """Return the value, or the first element of an array. The empty text is NULL (None)."""
    while type(value) is list:
        value = value[0] if value else None
    return None if value == "" else value


def to_condition(value: Any) -> Verdict:
    """Return the value as a condition: a number is TRUE unless it is 0; other values are unknown (None)."""
    number = to_number(value)
    return None if number is None else number != 0


def to_number(value: Any) -> Number | None:
    """Return the value as a number for arithmetic, or None."""
    if type(value) is float or type(value) is int:
        return value
    value = to_scalar(value)
    if isinstance(value, str):
        return parse_decimal(value)
    return value if isinstance(value, int | float) else None


def to_text(value: Any) -> str | None:
    """Return the text of one element for LIKE, as in JSON, or None if it has none."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else None


# ------------------------------------------------------------------------------------------------- comparison


def compare(sign: str, left: Any, right: Any) -> Verdict:
    """Return the result of `left sign right` for values of any type, including arrays."""
    if type(left) is list:
        if type(right) is list:
            return compare_arrays(sign, flatten_array(left), flatten_array(right))
        return or_verdicts([_compare_one(sign, element, right) for element in flatten_array(left)])
    if type(right) is list:
        return or_verdicts([_compare_one(sign, left, element) for element in flatten_array(right)])
    return _compare_one(sign, left, right)


def or_verdicts(verdicts: Sequence[Verdict]) -> Verdict:
    """Return TRUE if any verdict is TRUE, else unknown if any is unknown or there is none, else FALSE."""
    if True in verdicts:
        return True
    return None if None in verdicts or not verdicts else False


def _compare_one(sign: str, left: Any, right: Any) -> Verdict:
    """Return the result of `left sign right` for values that are not arrays."""
    if (
        left is None
        or right is None
        or left == ""
        or right == ""
        or type(left) is dict
        or type(right) is dict
    ):
        return None
    test = OPERATORS[sign]
    if isinstance(left, str) is isinstance(right, str):
        return test(left, right)
    if isinstance(left, str):
        number = parse_decimal(left)
        return test(1, 0) if number is None else test(number, right)
    number = parse_decimal(right)
    return test(0, 1) if number is None else test(left, number)


class _ArrayOperand:
    """Elements of one array, grouped by type, so that two arrays compare in linear time."""

    __slots__ = ("converted", "numbers", "texts", "unknown", "words")

    def __init__(self, elements: Sequence[Any]) -> None:
        self.numbers = [element for element in elements if isinstance(element, int | float)]
        self.texts = [element for element in elements if isinstance(element, str) and element]
        self.unknown = not elements or len(self.numbers) + len(self.texts) < len(elements)
        self.converted: list[Number] = []
        self.words = False

    def convert(self) -> None:
        """Set `converted` to the numbers that texts represent, and `words` if a text represents none."""
        found = [parse_decimal(text) for text in self.texts]
        self.converted = [number for number in found if number is not None]
        self.words = None in found


def compare_arrays(sign: str, left: Sequence[Any], right: Sequence[Any]) -> Verdict:
    """Return whether `sign` holds for any pair of elements of two flat arrays."""
    one, other = _ArrayOperand(left), _ArrayOperand(right)
    if _compare_pairs(sign, one.numbers, other.numbers) or _compare_pairs(sign, one.texts, other.texts):
        return True
    if one.numbers and other.texts:
        other.convert()
        if _compare_pairs(sign, one.numbers, other.converted) or (other.words and OPERATORS[sign](0, 1)):
            return True
    if other.numbers and one.texts:
        one.convert()
        if _compare_pairs(sign, one.converted, other.numbers) or (one.words and OPERATORS[sign](1, 0)):
            return True
    return None if one.unknown or other.unknown else False


def _compare_pairs(sign: str, left: list[Any], right: list[Any]) -> bool:
    """Return whether `sign` holds for any pair of elements of two lists of one ordered type."""
    if not left or not right:
        return False
    if sign == "=":
        return not set(left).isdisjoint(right)
    if sign == "!=":
        return len(set(left) | set(right)) > 1
    if sign in ("<", "<="):
        return OPERATORS[sign](min(left), max(right))
    return OPERATORS[sign](max(left), min(right))


# ------------------------------------------------------------------------------------------------- arithmetic


def calculate(sign: str, left: Number | None, right: Number | None) -> Number | None:
    """Return the result of `left sign right`.

    NULL (None) for NULL operands, division by zero and overflow.
    """
    if left is None or right is None:
        return None
    if type(left) is float and type(right) is float and sign in "+-":
        return _to_finite(left + right if sign == "+" else left - right)
    if sign == "+":
        return _limit_number(left + right)
    if sign == "-":
        return _limit_number(left - right)
    if sign == "*":
        return _limit_number(left * right)
    if right == 0:
        return None
    return _limit_number(left / right) if sign == "/" else _remainder(left, right)


def _remainder(left: Number, right: Number) -> Number | None:
    # The result has the sign of the first operand, as in AMPS and C. Python's % takes that of the second.
    if isinstance(left, int) and isinstance(right, int):
        remainder = abs(left) % abs(right)
        return remainder if left >= 0 else -remainder
    return math.fmod(left, right)


def _limit_number(value: Number) -> Number | None:
    """Return the value, with integers beyond 64 bits as floating point.

    Otherwise a filter could calculate with thousands of digits.
    """
    if isinstance(value, int):
        return value if -_INTEGERS < value < _INTEGERS else float(value)
    return _to_finite(value)


def _to_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def compile_path(steps: tuple[Step, ...]) -> Callable[[Any], Any]:
    """Compile the path of a field to a function from a decoded message to the field's value."""
    if len(steps) == 1 and isinstance(steps[0], str):
        return _compile_name(steps[0])

    def get(message: Any) -> Any:
        value = message
        for at, step in enumerate(steps):
            kind = type(value)
            if kind is dict:
                value = value.get(step)
            elif kind is list:
                if isinstance(step, str):
                    return _get_from_array(value, steps[at:])
                value = value[step] if step < len(value) else None
            else:
                return None
        return value

    return get


def _compile_name(name: str) -> Callable[[Any], Any]:
    def get(message: Any) -> Any:
        if type(message) is dict:
            return message.get(name)
        return _get_from_array(message, (name,)) if type(message) is list else None

    return get


def _get_from_array(array: list[Any], steps: Sequence[Step]) -> list[Any]:
    """Return the values that the steps select from each element. Elements without them add nothing."""
    values = flatten_array(array)
    for step in steps:
        if isinstance(step, int):
            values = [value[step] for value in values if type(value) is list and step < len(value)]
        else:
            objects = flatten_array(values)
            values = [value[step] for value in objects if type(value) is dict and step in value]
    return values
