"""From a selector's tokens to a test of headers, by precedence: OR, AND, NOT, comparisons, sums, products, signs.

Comparisons bind the same whichever they are, and from the left, so that `a > 1 = TRUE` asks what it seems to. Closures are
built from tokens that were checked; nothing that comes from outside is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Final, NamedTuple

import re2

from broker_core.filters.selectors.tokens import Kind, Token, bad_selector, tokens_of
from broker_core.filters.selectors.values import COMPARE, Value, Verdict, calculate, compare, truth

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
"""What JMS calls a message's own properties, as STOMP's headers."""
_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN = range(1, 8)
_BINDS: Final = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "%": _PRODUCT} | dict.fromkeys(
    COMPARE, _COMPARISON
)
_WORDS: Final = {"OR": _OR, "AND": _AND} | dict.fromkeys(("NOT", "BETWEEN", "IN", "LIKE", "IS"), _COMPARISON)

MOST_MIXED: Final = 256
"""Letters of a LIKE pattern that has both % and _."""


class _Part(NamedTuple):
    """A part of a selector: how its value is had, whether it is a condition, and its text when it is one in quotes."""

    get: Get
    condition: bool = False
    text: str | None = None


@lru_cache(maxsize=512)
def compile_selector(text: str) -> HeaderTest:
    """A test that is TRUE for the headers that are wanted, FALSE or unknown for others. Raises ClientError bad_selector."""
    parser = _Parser(tokens_of(text))
    part = parser.part(0)
    parser.expect(Kind.END, "")
    return _verdict(part)


def _verdict(part: _Part) -> HeaderTest:
    get = part.get
    return lambda headers: truth(get(headers))


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._token
        self._at += 1
        return token

    def _is(self, kind: Kind, value: str) -> bool:
        return self._token.kind is kind and self._token.value == value

    def _took(self, kind: Kind, value: str) -> bool:
        if self._is(kind, value):
            self._at += 1
            return True
        return False

    def expect(self, kind: Kind, value: str) -> Token:
        """The next token, which must be that."""
        if not self._is(kind, value):
            raise self._unexpected(value or kind.value)
        return self._next()

    def _unexpected(self, wanted: str) -> Exception:
        token = self._token
        found = token.kind.value if token.kind is Kind.END else repr(token.value)
        return bad_selector(f"{wanted} is expected, not {found}", token.column)

    def part(self, binds: int) -> _Part:
        """The part that begins here, with what binds more closely than that."""
        left = self._first()
        while True:
            token = self._token
            table = _BINDS if token.kind is Kind.SIGN else _WORDS if token.kind is Kind.WORD else {}
            strength = table.get(str(token.value), 0)
            if strength <= binds:
                return left
            left = self._further(left, strength)

    def _first(self) -> _Part:
        token = self._next()
        value = token.value
        match token.kind, value:
            case Kind.NAME, _:
                name = JMS.get(str(value), str(value))
                return _Part(lambda headers: headers.get(name))
            case Kind.TEXT, _:
                return _Part(lambda headers: value, text=str(value))
            case Kind.NUMBER, _:
                return _Part(lambda headers: value)
            case Kind.WORD, "TRUE" | "FALSE":
                truth_of = value == "TRUE"
                return _Part(lambda headers: truth_of, True)
            case Kind.WORD, "NOT":
                return _negated(self.part(_NOT))
            case Kind.SIGN, "(":
                inner = self.part(0)
                self.expect(Kind.SIGN, ")")
                return inner._replace(text=None) if inner.text is None else inner
            case Kind.SIGN, "-" | "+":
                of, sign = self.part(_SIGN).get, str(value)
                return _Part(lambda headers: calculate(sign, 0, of(headers)))
        self._at -= 1
        raise self._unexpected("a name, a value or (")

    def _further(self, left: _Part, strength: int) -> _Part:
        token = self._next()
        if token.kind is Kind.SIGN:
            sign, right = str(token.value), self.part(strength)
            if strength == _COMPARISON:
                return _compared(sign, left, right)
            one, other = left.get, right.get
            return _Part(lambda headers: calculate(sign, one(headers), other(headers)))
        match token.value:
            case "AND":
                return _joined(left, self.part(_AND), False)
            case "OR":
                return _joined(left, self.part(_OR), True)
            case "IS":
                return self._is_null(left)
            case "NOT":
                word = self._next()
                if word.kind is Kind.WORD and word.value in ("BETWEEN", "IN", "LIKE"):
                    return _negated(self._tested(left, str(word.value)))
                self._at -= 1
                raise self._unexpected("BETWEEN, IN or LIKE")
        return self._tested(left, str(token.value))

    def _tested(self, left: _Part, word: str) -> _Part:
        if word == "BETWEEN":
            low = self.part(_COMPARISON)
            self.expect(Kind.WORD, "AND")
            return _joined(_compared(">=", left, low), _compared("<=", left, self.part(_COMPARISON)), False)
        return self._among(left) if word == "IN" else self._like(left)

    def _is_null(self, left: _Part) -> _Part:
        negated, get = self._took(Kind.WORD, "NOT"), left.get
        self.expect(Kind.WORD, "NULL")
        return _Part(lambda headers: (get(headers) is None) != negated, True)

    def _among(self, left: _Part) -> _Part:
        self.expect(Kind.SIGN, "(")
        items = [self.part(_COMPARISON)]
        while self._took(Kind.SIGN, ","):
            items.append(self.part(_COMPARISON))
        self.expect(Kind.SIGN, ")")
        found = _compared("=", left, items[0])
        for item in items[1:]:
            found = _joined(found, _compared("=", left, item), True)
        return found

    def _like(self, left: _Part) -> _Part:
        if self._token.kind is not Kind.TEXT:
            raise self._unexpected("a pattern in quotes")
        pattern, escape = self._next(), ""
        if self._took(Kind.WORD, "ESCAPE"):
            if self._token.kind is not Kind.TEXT or len(str(self._token.value)) != 1:
                raise self._unexpected("one letter in quotes")
            escape = str(self._next().value)
        matches, get = _matcher(str(pattern.value), escape, pattern.column), left.get

        def test(headers: Headers) -> Value:
            value = get(headers)
            if not isinstance(value, str):
                return None if value is None else False
            return matches(value)

        return _Part(test, True)


def _matcher(pattern: str, escape: str, column: int) -> Callable[[str], bool]:
    """Whether a text is LIKE a pattern. What stands between % is looked for piece by piece, which costs what the text is long;
    RE2 tries as many ways as the pattern has letters when it has many %, so with _ among them it may have few."""
    pieces: list[str] = [""]
    made, letters, anyone = ["(?s)"], iter(pattern), False
    for letter in letters:
        if escape and letter == escape:
            letter = next(letters, "")
            if not letter:
                raise bad_selector("nothing follows the pattern's last escape", column)
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
    if len(pieces) > 1 and len(pattern) > MOST_MIXED:
        raise bad_selector(f"a pattern with both % and _ has more than {MOST_MIXED} letters", column)
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1024 * 1024
    try:
        expression = re2.compile("".join(made).encode(), options=options)
    except re2.error:
        raise bad_selector("the pattern is too large", column) from None
    return lambda text: expression.fullmatch(text.encode(errors="replace")) is not None


def _in_order(pieces: Sequence[str], text: str) -> bool:
    """Whether a text is these pieces with anything between them."""
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


def _compared(sign: str, left: _Part, right: _Part) -> _Part:
    one, other = left.get, right.get
    by_letters = left.text is not None or right.text is not None
    return _Part(lambda headers: compare(sign, one(headers), other(headers), by_letters), True)


def _negated(part: _Part) -> _Part:
    test = _verdict(part)

    def get(headers: Headers) -> Value:
        found = test(headers)
        return None if found is None else not found

    return _Part(get, True)


def _joined(left: _Part, right: _Part, decides: bool) -> _Part:
    """Of three values: True where one is enough (OR), False where one spoils it (AND), unknown where neither is sure."""
    one, other = _verdict(left), _verdict(right)

    def get(headers: Headers) -> Value:
        first = one(headers)
        if first is decides:
            return decides
        second = other(headers)
        return second if second is decides or first is not None else None

    return _Part(get, True)
