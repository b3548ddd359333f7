"""A selector's text as tokens. Everything that can be wrong is said with its column, counted from 1."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from broker_core.errors import ClientError

MAX_CHARACTERS: Final = 4_096
MAX_TOKENS: Final = 200
KEYWORDS: Final = frozenset(
    ("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE")
)
HYPHENATED: Final = "hyphenated_props:"
_PREFIXES: Final = (HYPHENATED, "convert_string_expressions:")
"""What ActiveMQ's clients may put before a selector. Texts are converted here anyway."""
_SIGNS: Final = ("<>", "<=", ">=", "=", "<", ">", "+", "-", "*", "/", "%", "(", ")", ",")
_DIGITS: Final = frozenset("0123456789")
_LETTERS: Final = frozenset("0123456789abcdefABCDEF_")


class Kind(Enum):
    """What a token is."""

    NAME = "a name"
    TEXT = "a text"
    NUMBER = "a number"
    WORD = "a keyword"
    SIGN = "a sign"
    END = "the end"


class Token(NamedTuple):
    """One token; `value` is a number's, a keyword's in capitals, a text's without quotes."""

    kind: Kind
    value: str | int | float
    column: int


def bad_selector(why: str, column: int) -> ClientError:
    """The refusal of a selector."""
    return ClientError(
        "bad_selector",
        f"The selector can't be read: {why} (column {column}).",
        "docs/stomp.md says what selectors are, with examples.",
        column=column,
    )


def tokens_of(text: str) -> list[Token]:
    """The tokens, the end last. Raises ClientError bad_selector."""
    if len(text) > MAX_CHARACTERS:
        raise bad_selector(f"it has more than {MAX_CHARACTERS} characters", MAX_CHARACTERS + 1)
    at, hyphens = 0, False
    for prefix in _PREFIXES:
        if text.startswith(prefix, at):
            at, hyphens = at + len(prefix), hyphens or prefix == HYPHENATED
    found: list[Token] = []
    while (at := _skip(text, at)) < len(text):
        if len(found) == MAX_TOKENS:
            raise bad_selector(f"it has more than {MAX_TOKENS} tokens", at + 1)
        token, at = _token(text, at, hyphens)
        found.append(token)
    return [*found, Token(Kind.END, "", len(text) + 1)]


def _skip(text: str, at: int) -> int:
    """Past spaces and comments."""
    while at < len(text):
        if text[at].isspace():
            at += 1
        elif text.startswith("--", at):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            if end < 0:
                raise bad_selector("a comment has no end", at + 1)
            at = end + 2
        else:
            break
    return at


def _token(text: str, at: int, hyphens: bool) -> tuple[Token, int]:
    letter = text[at]
    if letter in "'\"":
        value, end = _quoted(text, at)
        return Token(Kind.TEXT if letter == "'" else Kind.NAME, value, at + 1), end
    if letter in _DIGITS or (letter == "." and text[at + 1 : at + 2] in _DIGITS and at + 1 < len(text)):
        return _number(text, at)
    if letter.isalpha() or letter in "_$":
        end = at + 1
        while end < len(text) and _continues(text, end, hyphens):
            end += 1
        name = text[at:end]
        word = name.upper()
        return (Token(Kind.WORD, word, at + 1) if word in KEYWORDS else Token(Kind.NAME, name, at + 1)), end
    for sign in _SIGNS:
        if text.startswith(sign, at):
            return Token(Kind.SIGN, sign, at + 1), at + len(sign)
    raise bad_selector(f"{letter!r} can't stand there", at + 1)


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
            raise bad_selector("a quote has no end", at + 1)
        parts.append(text[end:close])
        if text[close + 1 : close + 2] != quote:
            return "".join(parts), close + 1
        parts.append(quote)
        end = close + 2


def _number(text: str, at: int) -> tuple[Token, int]:
    """42, 0x2A, 052, 4.2, .5, 4e2, each with or without the L, F or D of Java."""
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
        raise bad_selector("that isn't a number", at + 1)
    return Token(Kind.NUMBER, value, at + 1), end


def _digits(text: str, at: int) -> int:
    while at < len(text) and text[at] in _DIGITS:
        at += 1
    return at
