"""Parser and compiler of selectors: from text to tokens, and from tokens to a test of headers.

Precedence, loosest first: OR, AND, NOT, comparisons, sums, products, signs. All comparisons have the same
precedence and are left-associative, so that `a > 1 = TRUE` has its natural meaning. The test consists of
closures built from validated tokens; no input is executed. Every error names its column, counted from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import lru_cache, partial
from typing import Final, NamedTuple

import re2

from broker_core.errors import ClientError
from broker_core.filters.selectors.values import COMPARE, Value, Verdict, calculate, compare, to_condition

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
_LETTERS: Final = frozenset("0123456789abcdefABCDEF_")


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
    value: str | int | float
    column: int


def selector_error(why: str, column: int) -> ClientError:
    """Return the error for an invalid selector."""
    return ClientError(
        "bad_selector",
        f"The selector can't be read: {why} (column {column}).",
        "docs/stomp.md says what selectors are, with examples.",
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
    while (at := _skip(text, at)) < len(text):
        if len(found) == MAX_TOKENS:
            raise selector_error(f"it has more than {MAX_TOKENS} tokens", at + 1)
        token, at = _token(text, at, hyphens)
        found.append(token)
    return [*found, SelectorToken(SelectorTokenType.END, "", len(text) + 1)]


def _skip(text: str, at: int) -> int:
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
        value, end = _quoted(text, at)
        return SelectorToken(
            SelectorTokenType.TEXT if letter == "'" else SelectorTokenType.NAME, value, at + 1
        ), end
    if letter in _DIGITS or (letter == "." and text[at + 1 : at + 2] in _DIGITS and at + 1 < len(text)):
        return _number(text, at)
    if letter.isalpha() or letter in "_$":
        end = at + 1
        while end < len(text) and _continues(text, end, hyphens):
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


def _continues(text: str, at: int, hyphens: bool) -> bool:
    letter = text[at]
    if letter in "-":
        return hyphens and at + 1 < len(text) and (text[at + 1].isalnum() or text[at + 1] == "_")
    return letter.isalnum() or letter in "_$."


def _quoted(text: str, at: int) -> tuple[str, int]:
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


def _number(text: str, at: int) -> tuple[SelectorToken, int]:
    """Read a number: 42, 0x2A, 052 (octal), 4.2, .5 or 4e2, with an optional Java suffix L, F or D."""
    end = at
    if text[at : at + 2] in ("0x", "0X"):
        end = at + 2
        while end < len(text) and text[end] in _LETTERS and text[end] != "_":
            end += 1
        digits = text[at + 2 : end]
        value: int | float | None = int(digits, 16) if digits else None
        whole = True
    else:
        end = _digits(text, end)
        whole = True
        if text[end : end + 1] == ".":
            end, whole = _digits(text, end + 1), False
        if text[end : end + 1] in ("e", "E"):
            start = end + 1 + (text[end + 1 : end + 2] in ("+", "-"))
            stop = _digits(text, start)
            if stop > start:
                end, whole = stop, False
        digits = text[at:end]
        octal = whole and len(digits) > 1 and digits[0] == "0" and set(digits) <= set("01234567")
        value = int(digits, 8 if octal else 10) if whole and len(digits) <= 18 else float(digits)
    suffix = text[end : end + 1].lower()
    if suffix and suffix in "lfd" and (suffix != "l" or whole):
        end += 1
        if suffix in "fd" and value is not None:
            value = float(value)
    if value is None or (end < len(text) and (text[end].isalnum() or text[end] in "_$.")):
        raise selector_error("that isn't a number", at + 1)
    return SelectorToken(SelectorTokenType.NUMBER, value, at + 1), end


def _digits(text: str, at: int) -> int:
    while at < len(text) and text[at] in _DIGITS:
        at += 1
    return at


Headers = Mapping[str, str]
Get = Callable[[Headers], Value]
HeaderTest = Callable[[Headers], Verdict]
JMS: Final = {
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
_BINDS: Final = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "%": _PRODUCT} | dict.fromkeys(
    COMPARE, _COMPARISON
)
_WORDS: Final = {"OR": _OR, "AND": _AND} | dict.fromkeys(("NOT", "BETWEEN", "IN", "LIKE", "IS"), _COMPARISON)

MAX_MIXED: Final = 256
"""Maximum characters of a LIKE pattern that contains both % and _."""


class _SelectorTerm(NamedTuple):
    """Compiled part of a selector.

    Attributes:
        get: Returns the value of the part for some headers.
        condition: Whether the part is a condition.
        text: Text of a quoted literal, else None.
    """

    get: Get
    condition: bool = False
    text: str | None = None


@lru_cache(maxsize=512)
def compile_selector(text: str) -> HeaderTest:
    """Compile a selector to a test of headers, which returns TRUE, FALSE or unknown (None).

    Raises:
        ClientError: `bad_selector`.
    """
    parser = _SelectorParser(tokenize_selector(text))
    part = parser.part(0)
    parser.expect(SelectorTokenType.END, "")
    return _verdict(part)


def _verdict(part: _SelectorTerm) -> HeaderTest:
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

    def _took(self, kind: SelectorTokenType, value: str) -> bool:
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

    def _unexpected(self, wanted: str) -> Exception:
        token = self._token
        found = token.kind.value if token.kind is SelectorTokenType.END else repr(token.value)
        return selector_error(f"{wanted} is expected, not {found}", token.column)

    def part(self, binds: int) -> _SelectorTerm:
        """Parse the part that begins here, including operators that bind more tightly than `binds`."""
        left = self._first()
        while True:
            token = self._token
            table = (
                _BINDS
                if token.kind is SelectorTokenType.SIGN
                else _WORDS
                if token.kind is SelectorTokenType.WORD
                else {}
            )
            strength = table.get(str(token.value), 0)
            if strength <= binds:
                return left
            left = self._further(left, strength)

    def _first(self) -> _SelectorTerm:
        """Parse an operand: a name, a literal, a negation, a sign or parentheses."""
        token = self._next()
        value = token.value
        match token.kind, value:
            case SelectorTokenType.NAME, _:
                name = JMS.get(str(value), str(value))
                return _SelectorTerm(lambda headers: headers.get(name))
            case SelectorTokenType.TEXT, _:
                return _SelectorTerm(lambda headers: value, text=str(value))
            case SelectorTokenType.NUMBER, _:
                return _SelectorTerm(lambda headers: value)
            case SelectorTokenType.WORD, "TRUE" | "FALSE":
                truth_of = value == "TRUE"
                return _SelectorTerm(lambda headers: truth_of, True)
            case SelectorTokenType.WORD, "NOT":
                return _negated(self.part(_NOT))
            case SelectorTokenType.SIGN, "(":
                inner = self.part(0)
                self.expect(SelectorTokenType.SIGN, ")")
                return inner._replace(text=None) if inner.text is None else inner
            case SelectorTokenType.SIGN, "-" | "+":
                of, sign = self.part(_SIGN).get, str(value)
                return _SelectorTerm(lambda headers: calculate(sign, 0, of(headers)))
        self._at -= 1
        raise self._unexpected("a name, a value or (")

    def _further(self, left: _SelectorTerm, strength: int) -> _SelectorTerm:
        """Parse the operator after `left` and its right operand."""
        token = self._next()
        if token.kind is SelectorTokenType.SIGN:
            sign, right = str(token.value), self.part(strength)
            if strength == _COMPARISON:
                return _compared(sign, left, right)
            one, other = left.get, right.get
            return _SelectorTerm(lambda headers: calculate(sign, one(headers), other(headers)))
        match token.value:
            case "AND":
                return _joined(left, self.part(_AND), False)
            case "OR":
                return _joined(left, self.part(_OR), True)
            case "IS":
                return self._is_null(left)
            case "NOT":
                word = self._next()
                if word.kind is SelectorTokenType.WORD and word.value in ("BETWEEN", "IN", "LIKE"):
                    return _negated(self._tested(left, str(word.value)))
                self._at -= 1
                raise self._unexpected("BETWEEN, IN or LIKE")
        return self._tested(left, str(token.value))

    def _tested(self, left: _SelectorTerm, word: str) -> _SelectorTerm:
        if word == "BETWEEN":
            low = self.part(_COMPARISON)
            self.expect(SelectorTokenType.WORD, "AND")
            return _joined(_compared(">=", left, low), _compared("<=", left, self.part(_COMPARISON)), False)
        return self._among(left) if word == "IN" else self._like(left)

    def _is_null(self, left: _SelectorTerm) -> _SelectorTerm:
        negated, get = self._took(SelectorTokenType.WORD, "NOT"), left.get
        self.expect(SelectorTokenType.WORD, "NULL")
        return _SelectorTerm(lambda headers: (get(headers) is None) != negated, True)

    def _among(self, left: _SelectorTerm) -> _SelectorTerm:
        self.expect(SelectorTokenType.SIGN, "(")
        items = [self.part(_COMPARISON)]
        while self._took(SelectorTokenType.SIGN, ","):
            items.append(self.part(_COMPARISON))
        self.expect(SelectorTokenType.SIGN, ")")
        found = _compared("=", left, items[0])
        for item in items[1:]:
            found = _joined(found, _compared("=", left, item), True)
        return found

    def _like(self, left: _SelectorTerm) -> _SelectorTerm:
        if self._token.kind is not SelectorTokenType.TEXT:
            raise self._unexpected("a pattern in quotes")
        pattern, escape = self._next(), ""
        if self._took(SelectorTokenType.WORD, "ESCAPE"):
            if self._token.kind is not SelectorTokenType.TEXT or len(str(self._token.value)) != 1:
                raise self._unexpected("one letter in quotes")
            escape = str(self._next().value)
        matches, get = _matcher(str(pattern.value), escape, pattern.column), left.get

        def test(headers: Headers) -> Value:
            value = get(headers)
            if not isinstance(value, str):
                return None if value is None else False
            return matches(value)

        return _SelectorTerm(test, True)


def _matcher(pattern: str, escape: str, column: int) -> Callable[[str], bool]:
    """Return a function that tests whether a text matches a LIKE pattern.

    Without `_`, the texts between % are searched one after the other, in time linear in the length of the
    text. RE2 tries as many alternatives as the pattern has characters if it has many %. So a pattern with
    both is limited to MAX_MIXED.
    """
    pieces: list[str] = [""]
    made, letters, anyone = ["(?s)"], iter(pattern), False
    for letter in letters:
        if escape and letter == escape:
            letter = next(letters, "")
            if not letter:
                raise selector_error("nothing follows the pattern's last escape", column)
        elif letter == "%":
            made.append(".*")
            pieces.append("")
            continue
        elif letter == "_":
            made.append(".")
            anyone = True
            continue
        made.append(re2.escape(letter))
        pieces[-1] += letter
    if not anyone:
        return partial(_in_order, pieces)
    if len(pieces) > 1 and len(pattern) > MAX_MIXED:
        raise selector_error(f"a pattern with both % and _ has more than {MAX_MIXED} letters", column)
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1024 * 1024
    try:
        expression = re2.compile("".join(made).encode(), options=options)
    except re2.error:
        raise selector_error("the pattern is too large", column) from None
    return lambda text: expression.fullmatch(text.encode(errors="replace")) is not None


def _in_order(pieces: Sequence[str], text: str) -> bool:
    """Return whether a text consists of these pieces in order, with anything between them."""
    first, *between = pieces
    if not between:
        return text == first
    last, at, end = between.pop(), len(first), len(text)
    if not text.startswith(first) or not text.endswith(last):
        return False
    end -= len(last)
    for piece in between:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return at <= end


def _compared(sign: str, left: _SelectorTerm, right: _SelectorTerm) -> _SelectorTerm:
    """Return the term that compares two terms."""
    one, other = left.get, right.get
    by_letters = left.text is not None or right.text is not None
    return _SelectorTerm(lambda headers: compare(sign, one(headers), other(headers), by_letters), True)


def _negated(part: _SelectorTerm) -> _SelectorTerm:
    test = _verdict(part)

    def get(headers: Headers) -> Value:
        found = test(headers)
        return None if found is None else not found

    return _SelectorTerm(get, True)


def _joined(left: _SelectorTerm, right: _SelectorTerm, decides: bool) -> _SelectorTerm:
    """Return the term that joins two conditions by OR (`decides` True) or AND (`decides` False).

    OR is TRUE if any side is TRUE, AND is FALSE if any side is FALSE. Otherwise the result is unknown if a
    side is.
    """
    one, other = _verdict(left), _verdict(right)

    def get(headers: Headers) -> Value:
        first = one(headers)
        if first is decides:
            return decides
        second = other(headers)
        return second if second is decides or first is not None else None

    return _SelectorTerm(get, True)
