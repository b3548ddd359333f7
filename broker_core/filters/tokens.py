"""Tokenizer of filters: splits the text into tokens, each with its column. This is the complete vocabulary:

/path/to/field   /items[0]/price   [/unit price]     identifiers; a name in brackets may contain blanks
12  1.5  2e3     'text'  "text"                      a quote inside is doubled; backslashes have no
meaning
= == != <> < <= > >=   + - * / %   ( ) ,             "/" directly before a name starts an identifier
AND OR NOT IN BETWEEN LIKE IS NULL TRUE FALSE MOD    upper or lower case
"""

from __future__ import annotations

import re

import msgspec

from broker_core.errors import ClientError

MAX_FILTER_TEXT = 4_096
"""Maximum characters of a filter."""
MAX_STEPS = 32
"""Maximum steps of one identifier: names and array positions."""
MAX_POSITION_DIGITS = 9

KEYWORDS = frozenset(("AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL", "TRUE", "FALSE", "MOD"))
_SYMBOLS = ("==", "!=", "<>", "<=", ">=", "=", "<", ">", "+", "-", "*", "/", "%", "(", ")", ",")
_NAME_MARKS = "_-.:@$#"
_DIGITS = "0123456789"
_COMMON = re.compile(
    r"\s*(?:"
    rf"(?P<path>(?:/[\w\-.:@$#]++){{1,{MAX_STEPS}}}+)(?![/\[])"
    r"|(?P<symbol>==|!=|<>|<=|>=|[=<>+\-*%(),])"
    r"|(?P<number>[0-9]{1,18}+)(?![\w.:@$#])"
    r"|(?P<text>'[^']*+'(?!'))"
    rf"|(?P<word>(?ai:{'|'.join(sorted(KEYWORDS))}))(?!\w)"
    r")"
)  # fmt: skip
"""Tokens of almost all filters, with the blanks before them.

Matching is ten times as fast as the manual scanner.

Text that does not match is rare or invalid, and the manual scanner reads it. The quantifiers are possessive,
so that no text causes backtracking.
"""
_NUMBER = re.compile(r"[0-9]*(?P<fraction>\.[0-9]*)?(?:(?P<mark>[eE][+-]?)(?P<exponent>[0-9]*))?")

Step = str | int
Value = str | int | float | tuple[Step, ...]


class FilterToken(msgspec.Struct, gc=False):
    """Token of a filter.

    `kind` is "path", "number", "text", "end", a keyword, or the symbol itself. `column` counts from 1.
    """

    kind: str
    value: Value
    column: int


def filter_error(sentence: str, column: int, fix: str = "docs/filters.md describes filters.") -> ClientError:
    """Return the error for an invalid filter; `column` counts from 1."""
    return ClientError("bad_filter", f"{sentence} (column {column} of the filter).", fix, column=column)


def is_name_character(character: str) -> bool:
    """Return whether a name in an identifier may contain the character without brackets."""
    return character.isalnum() or character in _NAME_MARKS


def tokenize(text: str) -> list[FilterToken]:
    """Split a filter into tokens; the last one is "end".

    Raises:
        ClientError: `bad_filter`.
    """
    if len(text) > MAX_FILTER_TEXT:
        raise filter_error(
            f"A filter has {MAX_FILTER_TEXT} characters at most, not {len(text)}", MAX_FILTER_TEXT + 1
        )
    tokens: list[FilterToken] = []
    at = 0
    while at < len(text):
        found = _COMMON.match(text, at)
        if found is None:  # trailing blanks, a rare token or an error
            if text[at].isspace():
                at += 1
                continue
            token, at = _next_token(text, at)
        else:
            token, at = _common_token(found), found.end()
        tokens.append(token)
    tokens.append(FilterToken("end", "", len(text) + 1))
    return tokens


def _common_token(found: re.Match[str]) -> FilterToken:
    kind = found.lastgroup or ""
    value, start = found[kind], found.start(kind)
    if kind == "path":
        return FilterToken("path", tuple(value[1:].split("/")), start + 1)
    if kind == "number":
        return FilterToken("number", int(value), start + 1)
    if kind == "text":
        return FilterToken("text", value[1:-1], start + 1)
    word = value.upper()
    return FilterToken(word, word, start + 1)


def _next_token(text: str, at: int) -> tuple[FilterToken, int]:
    """Scan one token that `_COMMON` does not match. Returns it and the position after it."""
    character, following = text[at], text[at + 1 : at + 2]
    if (character == "/" and following and is_name_character(following)) or text.startswith("[/", at):
        return _read_path(text, at)
    if character in "'\"":
        return _read_text(text, at)
    if character in _DIGITS or (character == "." and following and following in _DIGITS):
        return _read_number(text, at)
    if character.isalpha() or character == "_":
        return _read_keyword(text, at)
    for symbol in _SYMBOLS:
        if text.startswith(symbol, at):
            return FilterToken(symbol, symbol, at + 1), at + len(symbol)
    raise filter_error(f"{character!r} has no meaning here", at + 1)


def _read_path(text: str, start: int) -> tuple[FilterToken, int]:
    steps: list[Step] = []
    at = start
    while at < len(text):
        following = text[at + 1 : at + 2]
        if text.startswith("[/", at):
            names, at = _read_bracketed(text, at)
            steps += names
        elif text[at] == "[":
            position, at = _read_position(text, at)
            steps.append(position)
        elif text[at] == "/" and following and is_name_character(following):
            end = at + 1
            while end < len(text) and is_name_character(text[end]):
                end += 1
            steps.append(text[at + 1 : end])
            at = end
        else:
            break
    if len(steps) > MAX_STEPS:
        raise filter_error(f"An identifier has {MAX_STEPS} steps at most, not {len(steps)}", start + 1)
    return FilterToken("path", tuple(steps), start + 1), at


def _read_bracketed(text: str, start: int) -> tuple[list[str], int]:
    end = text.find("]", start)
    if end < 0:
        raise filter_error("The bracket of this name isn't closed", start + 1, "Write it like [/unit price].")
    names = text[start + 2 : end].split("/")
    if not all(names):
        raise filter_error("A name in brackets is empty", start + 1, "Write it like [/unit price].")
    return names, end + 1


def _read_position(text: str, start: int) -> tuple[int, int]:
    end = text.find("]", start)
    digits = text[start + 1 : end] if end > 0 else ""
    if not 0 < len(digits) <= MAX_POSITION_DIGITS or any(digit not in _DIGITS for digit in digits):
        raise filter_error(
            "An array position is a number from 0", start + 1, "Write it like /items[0]/price."
        )
    return int(digits), end + 1


def _read_text(text: str, start: int) -> tuple[FilterToken, int]:
    quote, parts, at = text[start], [], start + 1
    while True:
        end = text.find(quote, at)
        if end < 0:
            raise filter_error("This text isn't closed", start + 1, f"End it with {quote}.")
        parts.append(text[at:end])
        if text[end + 1 : end + 2] != quote:
            return FilterToken("text", quote.join(parts), start + 1), end + 1
        at = end + 2


def _read_number(text: str, start: int) -> tuple[FilterToken, int]:
    found = _NUMBER.match(text, start)
    assert found is not None, "it may be empty"
    fraction, mark, exponent = found.group("fraction", "mark", "exponent")
    end = found.end()
    if mark and not exponent:
        raise filter_error("The exponent of this number is missing", found.start("mark") + 1)
    if end < len(text) and text[end] != "-" and is_name_character(text[end]):
        raise filter_error(f"{text[start : end + 1]!r} isn't a number", start + 1)
    value = _to_number(found.group(), fraction is None and mark is None, start)
    return FilterToken("number", value, start + 1), end


def _to_number(digits: str, is_integer: bool, start: int) -> int | float:
    # 64-bit integers stay exact, as in orjson. Both read longer ones as floating point.
    if is_integer and len(digits.lstrip("0")) <= 20 and int(digits) < 2**64:
        return int(digits)
    value = float(digits)
    if value == float("inf"):
        raise filter_error("This number is too large", start + 1)
    return value


def _read_keyword(text: str, start: int) -> tuple[FilterToken, int]:
    end = start
    while end < len(text) and (text[end].isalnum() or text[end] == "_"):
        end += 1
    word = text[start:end]
    if word.upper() not in KEYWORDS:
        raise filter_error(
            f"{word[:40]!r} isn't a word of filters",
            start + 1,
            f"Write a field as /{word[:40]} and a text as '{word[:40]}'.",
        )
    return FilterToken(word.upper(), word.upper(), start + 1), end
