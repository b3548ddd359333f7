"""Parser and compiler of selectors: from text to tokens, and from tokens to a test of headers.

Precedence, loosest first: OR, AND, NOT, comparisons, sums, products, signs. All comparisons have the same
precedence and are left-associative, so that `a > 1 = TRUE` has its natural meaning. The test consists of
closures built from validated tokens; no input is executed. Every error names its column, counted from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from typing import Final, NamedTuple

import re2

from broker_core.errors import ClientError
from broker_core.filters.selectors.values import (
    COMPARE,
    MAX_NUMBER_CHARACTERS,
    Number,
    Value,
    Verdict,
    calculate,
    compare,
    to_condition,
)

MAX_CHARACTERS: Final = 4_096
MAX_TOKENS: Final = 200
KEYWORDS: Final = frozenset(
    ("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE")
)
HYPHENATED: Final = "hyphenated_props:"
_PREFIXES: Final = (HYPHENATED, "convert_string_expressions:")
"""Prefixes that ActiveMQ's clients may put before a selector. Texts are always converted here."""
_SIGNS: Final = ("<>", "<=", ">=", "=", "<", ">", "+", "-", "*", "/", "%", "(", ")", ",")
_DIGITS: Final = frozenset("0123456789")
_HEX_DIGITS: Final = frozenset("0123456789abcdefABCDEF_")


class SelectorTokenType(Enum):
    """Type of a selector's token. The value is its name in error messages."""

    NAME = "a name"
    TEXT = "a text"
    NUMBER = "a number"
    WORD = "a keyword"
    SIGN = "a sign"
    END = "the end"


class SelectorToken(NamedTuple):
    """Token of a selector.

    `value` is the number, the keyword in upper case, or the text without quotes. `column` counts from 1.
    """

    kind: SelectorTokenType
    value: str | Number
    column: int


def selector_error(reason: str, column: int) -> ClientError:
    """Return the error for an invalid selector."""
    return ClientError(
        "bad_selector",
        f"The selector can't be read: {reason} (column {column}).",
        "docs/stomp.md describes selectors, with examples.",
        column=column,
    )


def tokenize_selector(text: str) -> list[SelectorToken]:
    """Split a selector into tokens; the last one is END.

    Raises:
        ClientError: `bad_selector`.
    """
    if len(text) > MAX_CHARACTERS:
        raise selector_error(f"it has more than {MAX_CHARACTERS} characters", MAX_CHARACTERS + 1)
    at, hyphens = 0, False
    for prefix in _PREFIXES:
        if text.startswith(prefix, at):
            at, hyphens = at + len(prefix), hyphens or prefix == HYPHENATED
    found: list[SelectorToken] = []
    while (at := _skip_blanks(text, at)) < len(text):
        if len(found) == MAX_TOKENS:
            raise selector_error(f"it has more than {MAX_TOKENS} tokens", at + 1)
        token, at = _token(text, at, hyphens)
        found.append(token)
    return [*found, SelectorToken(SelectorTokenType.END, "", len(text) + 1)]


def _skip_blanks(text: str, at: int) -> int:
    """Return the position after spaces and comments."""
    while at < len(text):
        if text[at].isspace():
            at += 1
        elif text.startswith("--", at):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            if end < 0:
                raise selector_error("a comment has no end", at + 1)
            at = end + 2
        else:
            break
    return at


def _token(text: str, at: int, hyphens: bool) -> tuple[SelectorToken, int]:
    """Return the token at a position, and the position after it."""
    letter = text[at]
    if letter in "'\"":
        value, end = _read_quoted(text, at)
        return SelectorToken(
            SelectorTokenType.TEXT if letter == "'" else SelectorTokenType.NAME, value, at + 1
        ), end
    if letter in _DIGITS or (letter == "." and text[at + 1 : at + 2] in _DIGITS and at + 1 < len(text)):
        return _read_number(text, at)
    if letter.isalpha() or letter in "_$":
        end = at + 1
        while end < len(text) and _is_name_character(text, end, hyphens):
            end += 1
        name = text[at:end]
        word = name.upper()
        return (
            SelectorToken(SelectorTokenType.WORD, word, at + 1)
            if word in KEYWORDS
            else SelectorToken(SelectorTokenType.NAME, name, at + 1)
        ), end
    for sign in _SIGNS:
        if text.startswith(sign, at):
            return SelectorToken(SelectorTokenType.SIGN, sign, at + 1), at + len(sign)
    raise selector_error(f"{letter!r} can't stand there", at + 1)


def _is_name_character(text: str, at: int, hyphens: bool) -> bool:
    letter = text[at]
    if letter in "-":
        return hyphens and at + 1 < len(text) and (text[at + 1].isalnum() or text[at + 1] == "_")
    return letter.isalnum() or letter in "_$."


def _read_quoted(text: str, at: int) -> tuple[str, int]:
    quote, end, parts = text[at], at + 1, list[str]()
    while True:
        close = text.find(quote, end)
        if close < 0:
            raise selector_error("a quote has no end", at + 1)
        parts.append(text[end:close])
        if text[close + 1 : close + 2] != quote:
            return "".join(parts), close + 1
        parts.append(quote)
        end = close + 2


def _read_number(text: str, at: int) -> tuple[SelectorToken, int]:
    """Read a number: 42, 0x2A, 052 (octal), 4.2, .5 or 4e2, with an optional Java suffix L, F or D."""
    end = at
    if text[at : at + 2] in ("0x", "0X"):
        end = at + 2
        while end < len(text) and text[end] in _HEX_DIGITS and text[end] != "_":
            end += 1
        digits = text[at + 2 : end]
        value: Number | None = int(digits, 16) if digits else None
        is_integer = True
    else:
        end = _skip_digits(text, end)
        is_integer = True
        if text[end : end + 1] == ".":
            end, is_integer = _skip_digits(text, end + 1), False
        if text[end : end + 1] in ("e", "E"):
            start = end + 1 + (text[end + 1 : end + 2] in ("+", "-"))
            stop = _skip_digits(text, start)
            if stop > start:
                end, is_integer = stop, False
        digits = text[at:end]
        octal = is_integer and len(digits) > 1 and digits[0] == "0" and set(digits) <= set("01234567")
        if is_integer and len(digits) <= MAX_NUMBER_CHARACTERS:
            value = int(digits, 8 if octal else 10)
        else:
            value = _parse_decimal(digits)
    suffix = text[end : end + 1].lower()
    if suffix and suffix in "lfd" and (suffix != "l" or is_integer):
        end += 1
        if suffix in "fd" and value is not None:
            value = Decimal(value)
    if value is None or (end < len(text) and (text[end].isalnum() or text[end] in "_$.")):
        raise selector_error("that isn't a number", at + 1)
    return SelectorToken(SelectorTokenType.NUMBER, value, at + 1), end


def _parse_decimal(digits: str) -> Decimal | None:
    try:
        return Decimal(digits)
    except ArithmeticError:  # its exponent has too many digits
        return None


def _skip_digits(text: str, at: int) -> int:
    while at < len(text) and text[at] in _DIGITS:
        at += 1
    return at


Headers = Mapping[str, str]
Get = Callable[[Headers], Value]
HeaderTest = Callable[[Headers], Verdict]
JMS_HEADERS: Final = {
    "JMSType": "type",
    "JMSCorrelationID": "correlation-id",
    "JMSPriority": "priority",
    "JMSTimestamp": "timestamp",
    "JMSMessageID": "message-id",
    "JMSReplyTo": "reply-to",
    "JMSExpiration": "expires",
}
"""STOMP header of each JMS property."""
_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN = range(1, 8)
_SIGN_STRENGTHS: Final = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "%": _PRODUCT} | dict.fromkeys(
    COMPARE, _COMPARISON
)
_KEYWORD_STRENGTHS: Final = {"OR": _OR, "AND": _AND} | dict.fromkeys(
    ("NOT", "BETWEEN", "IN", "LIKE", "IS"), _COMPARISON
)

MAX_MIXED_PATTERN: Final = 256
"""Maximum characters of a LIKE pattern that contains both % and _."""


class _SelectorTerm(NamedTuple):
    """Compiled part of a selector.

    Attributes:
        get: Returns the value of the part for some headers.
        is_text: Whether the part is a quoted text, with or without parentheses.
    """

    get: Get
    is_text: bool = False


@lru_cache(maxsize=512)
def compile_selector(text: str) -> HeaderTest:
    """Compile a selector to a test of headers, which returns TRUE, FALSE or unknown (None).

    Raises:
        ClientError: `bad_selector`.
    """
    parser = _SelectorParser(tokenize_selector(text))
    part = parser.parse_term(0)
    parser.expect(SelectorTokenType.END, "")
    return _condition_test(part)


def _condition_test(part: _SelectorTerm) -> HeaderTest:
    get = part.get
    return lambda headers: to_condition(get(headers))


class _SelectorParser:
    """Precedence climbing parser over one list of tokens."""

    def __init__(self, tokens: list[SelectorToken]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def _token(self) -> SelectorToken:
        return self._tokens[self._at]

    def _next(self) -> SelectorToken:
        token = self._token
        self._at += 1
        return token

    def _is(self, kind: SelectorTokenType, value: str) -> bool:
        return self._token.kind is kind and self._token.value == value

    def _accept(self, kind: SelectorTokenType, value: str) -> bool:
        if self._is(kind, value):
            self._at += 1
            return True
        return False

    def expect(self, kind: SelectorTokenType, value: str) -> SelectorToken:
        """Return the next token, which must have this type and value.

        Raises ClientError `bad_selector` otherwise.
        """
        if not self._is(kind, value):
            raise self._unexpected(value or kind.value)
        return self._next()

    def _unexpected(self, expected: str) -> Exception:
        token = self._token
        found = token.kind.value if token.kind is SelectorTokenType.END else repr(token.value)
        return selector_error(f"{expected} is expected, not {found}", token.column)

    def parse_term(self, min_strength: int) -> _SelectorTerm:
        """Parse the part that begins here, including operators that bind more tightly than `min_strength`."""
        left = self._parse_operand()
        while True:
            token = self._token
            table = (
                _SIGN_STRENGTHS
                if token.kind is SelectorTokenType.SIGN
                else _KEYWORD_STRENGTHS
                if token.kind is SelectorTokenType.WORD
                else {}
            )
            strength = table.get(str(token.value), 0)
            if strength <= min_strength:
                return left
            left = self._parse_operator(left, strength)

    def _parse_operand(self) -> _SelectorTerm:
        """Parse an operand: a name, a literal, a negation, a sign or parentheses."""
        token = self._next()
        value = token.value
        match token.kind, value:
            case SelectorTokenType.NAME, _:
                name = JMS_HEADERS.get(str(value), str(value))
                return _SelectorTerm(lambda headers: headers.get(name))
            case SelectorTokenType.TEXT, _:
                return _SelectorTerm(lambda headers: value, is_text=True)
            case SelectorTokenType.NUMBER, _:
                return _SelectorTerm(lambda headers: value)
            case SelectorTokenType.WORD, "TRUE" | "FALSE":
                truth = value == "TRUE"
                return _SelectorTerm(lambda headers: truth)
            case SelectorTokenType.WORD, "NOT":
                return _negate(self.parse_term(_NOT))
            case SelectorTokenType.SIGN, "(":
                inner = self.parse_term(0)
                self.expect(SelectorTokenType.SIGN, ")")
                return inner
            case SelectorTokenType.SIGN, "-" | "+":
                operand, sign = self.parse_term(_SIGN).get, str(value)
                return _SelectorTerm(lambda headers: calculate(sign, 0, operand(headers)))
        self._at -= 1
        raise self._unexpected("a name, a value or (")

    def _parse_operator(self, left: _SelectorTerm, strength: int) -> _SelectorTerm:
        """Parse the operator after `left` and its right operand."""
        token = self._next()
        if token.kind is SelectorTokenType.SIGN:
            sign, right = str(token.value), self.parse_term(strength)
            if strength == _COMPARISON:
                return _compare_terms(sign, left, right)
            left_value, right_value = left.get, right.get
            return _SelectorTerm(lambda headers: calculate(sign, left_value(headers), right_value(headers)))
        match token.value:
            case "AND":
                return _join_terms(left, self.parse_term(_AND), False)
            case "OR":
                return _join_terms(left, self.parse_term(_OR), True)
            case "IS":
                return self._parse_is_null(left)
            case "NOT":
                word = self._next()
                if word.kind is SelectorTokenType.WORD and word.value in ("BETWEEN", "IN", "LIKE"):
                    return _negate(self._parse_test(left, str(word.value)))
                self._at -= 1
                raise self._unexpected("BETWEEN, IN or LIKE")
        return self._parse_test(left, str(token.value))

    def _parse_test(self, left: _SelectorTerm, word: str) -> _SelectorTerm:
        if word == "BETWEEN":
            low = self.parse_term(_COMPARISON)
            self.expect(SelectorTokenType.WORD, "AND")
            return _join_terms(
                _compare_terms(">=", left, low),
                _compare_terms("<=", left, self.parse_term(_COMPARISON)),
                False,
            )
        return self._parse_in(left) if word == "IN" else self._parse_like(left)

    def _parse_is_null(self, left: _SelectorTerm) -> _SelectorTerm:
        negated, get = self._accept(SelectorTokenType.WORD, "NOT"), left.get
        self.expect(SelectorTokenType.WORD, "NULL")
        return _SelectorTerm(lambda headers: (get(headers) is None) != negated)

    def _parse_in(self, left: _SelectorTerm) -> _SelectorTerm:
        self.expect(SelectorTokenType.SIGN, "(")
        items = [self.parse_term(_COMPARISON)]
        while self._accept(SelectorTokenType.SIGN, ","):
            items.append(self.parse_term(_COMPARISON))
        self.expect(SelectorTokenType.SIGN, ")")
        found = _compare_terms("=", left, items[0])
        for item in items[1:]:
            found = _join_terms(found, _compare_terms("=", left, item), True)
        return found

    def _parse_like(self, left: _SelectorTerm) -> _SelectorTerm:
        if self._token.kind is not SelectorTokenType.TEXT:
            raise self._unexpected("a pattern in quotes")
        pattern, escape = self._next(), ""
        if self._accept(SelectorTokenType.WORD, "ESCAPE"):
            if self._token.kind is not SelectorTokenType.TEXT or len(str(self._token.value)) != 1:
                raise self._unexpected("one letter in quotes")
            escape = str(self._next().value)
        matches, get = _compile_like(str(pattern.value), escape, pattern.column), left.get

        def test(headers: Headers) -> Value:
            value = get(headers)
            if not isinstance(value, str):
                return None if value is None else False
            return matches(value)

        return _SelectorTerm(test)


def _compile_like(pattern: str, escape: str, column: int) -> Callable[[str], bool]:
    """Return a function that tests whether a text matches a LIKE pattern.

    Without `_`, the texts between % are searched one after the other, in time linear in the length of the
    text. RE2 tries as many alternatives as the pattern has characters if it has many %. So a pattern with
    both is limited to MAX_MIXED.
    """
    literals: list[str] = [""]
    expression_parts, letters, has_any_character = ["(?s)"], iter(pattern), False
    for letter in letters:
        if escape and letter == escape:
            letter = next(letters, "")
            if not letter:
                raise selector_error("nothing follows the pattern's last escape", column)
        elif letter == "%":
            expression_parts.append(".*")
            literals.append("")
            continue
        elif letter == "_":
            expression_parts.append(".")
            has_any_character = True
            continue
        expression_parts.append(re2.escape(letter))
        literals[-1] += letter
    if not has_any_character:
        return partial(_matches_in_order, literals)
    if len(literals) > 1 and len(pattern) > MAX_MIXED_PATTERN:
        raise selector_error(f"a pattern with both % and _ has more than {MAX_MIXED_PATTERN} letters", column)
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1024 * 1024
    try:
        expression = re2.compile("".join(expression_parts).encode(), options=options)
    except re2.error:
        raise selector_error("the pattern is too large", column) from None
    return lambda text: expression.fullmatch(text.encode(errors="replace")) is not None


def _matches_in_order(literals: Sequence[str], text: str) -> bool:
    """Return whether a text consists of these pieces in order, with anything between them."""
    first, *between = literals
    if not between:
        return text == first
    last, at, end = between.pop(), len(first), len(text)
    if not text.startswith(first) or not text.endswith(last):
        return False
    end -= len(last)
    for literal in between:
        found = text.find(literal, at, end)
        if found < 0:
            return False
        at = found + len(literal)
    return at <= end


def _compare_terms(sign: str, left: _SelectorTerm, right: _SelectorTerm) -> _SelectorTerm:
    """Return the term that compares two terms."""
    left_value, right_value = left.get, right.get
    by_letters = left.is_text or right.is_text
    return _SelectorTerm(lambda headers: compare(sign, left_value(headers), right_value(headers), by_letters))


def _negate(part: _SelectorTerm) -> _SelectorTerm:
    test = _condition_test(part)

    def get(headers: Headers) -> Value:
        found = test(headers)
        return None if found is None else not found

    return _SelectorTerm(get)


def _join_terms(left: _SelectorTerm, right: _SelectorTerm, decisive: bool) -> _SelectorTerm:
    """Return the term that joins two conditions by OR (`decisive` True) or AND (`decisive` False).

    OR is TRUE if any side is TRUE, AND is FALSE if any side is FALSE. Otherwise the result is unknown if a
    side is.
    """
    left_test, right_test = _condition_test(left), _condition_test(right)

    def get(headers: Headers) -> Value:
        first = left_test(headers)
        if first is decisive:
            return decisive
        second = right_test(headers)
        return second if second is decisive or first is not None else None

    return _SelectorTerm(get)
