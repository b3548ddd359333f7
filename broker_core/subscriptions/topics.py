r"""Topic patterns. Levels of a topic are separated by ".".

    flights.AA          this topic
    flights.*.delays    "*" stands for one whole level
    flights.>           ">" stands for one level or more, at the end
    ~flights\.(AA|DL)   "~" and a regular expression (RE2) that the whole topic must match

Topics that start with "$" are the broker's own: only a pattern that starts with "$" itself (or "~\$")
matches them, so that a subscription to ">" doesn't get the broker's events.

What two topic patterns have to do with each other, as far as that can be said without a list of topics. Pure.

Of patterns of levels it can be said exactly. Of a regular expression it can't in general, so the answers are about
what is certain: both functions say False when they don't know.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import re2

from broker_core.config.scopes import levels_cover
from broker_core.errors import ClientError
from broker_core.filters.parser import compile_pattern

MAX_PATTERN_BYTES = 255
"""Bytes of a pattern that isn't an expression: as many as a topic has at most."""
MAX_EXPRESSION = 1_024
"""Characters of a regular expression for topics."""
_FIX = "Write a topic, a.*.b, a.>, or ~ and a regular expression."


class TopicPattern:
    """A parsed pattern. `exact` is the topic when the pattern names just one, else None.

    `levels`, when there are any, are those of a pattern that names at least the topics this one does: by them it is
    found. Expressions have none.
    """

    __slots__ = ("_test", "exact", "levels", "text")

    def __init__(
        self, text: str, exact: str | None, test: Callable[[str], bool], levels: tuple[str, ...] | None = None
    ) -> None:
        self.levels = levels
        self.text = text
        self.exact = exact
        self._test = test

    @classmethod
    def parse(cls, text: str) -> TopicPattern:
        """The pattern, or ClientError bad_pattern with details["column"], counted from 1."""
        return _parse(text)

    def matches(self, topic: str) -> bool:
        """Whether a topic is one of those the pattern names."""
        return self._test(topic)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicPattern) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"TopicPattern({self.text!r})"


def _bad(text: str, why: str, column: int) -> ClientError:
    return ClientError(
        "bad_pattern", f"{text[:80]!r} isn't a topic pattern: {why} (column {column}).", _FIX, column=column
    )


@lru_cache(maxsize=512)
def _parse(text: str) -> TopicPattern:
    if text.startswith("~"):
        return TopicPattern(text, None, _expression(text))
    levels = _levels(text)
    if levels[-1] == ">":
        return TopicPattern(text, None, _open_ended(levels[:-1]), tuple(levels))
    if "*" in levels:
        return TopicPattern(text, None, _fixed_length(levels), tuple(levels))
    return TopicPattern(text, text, text.__eq__, tuple(levels))


def _levels(text: str) -> list[str]:
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise _bad(ascii(text), "half a surrogate pair isn't a character", error.start + 1) from None
    if not 0 < length <= MAX_PATTERN_BYTES:
        raise _bad(text, f"it has {length} bytes, not 1 to {MAX_PATTERN_BYTES}", 1)
    if " " in text or not text.isprintable():  # no other blank is printable
        at, character = next((at, one) for at, one in enumerate(text) if one == " " or not one.isprintable())
        raise _bad(text, f"{character!r} can't stand in a topic", at + 1)
    levels = text.split(".")
    column = 1
    for number, level in enumerate(levels):
        if not level:
            raise _bad(text, "a level is empty", column)
        if (level != "*" and "*" in level) or (level != ">" and ">" in level):
            raise _bad(text, "'*' and '>' stand for whole levels", column)
        if level == ">" and number != len(levels) - 1:
            raise _bad(text, "'>' stands at the end", column)
        column += len(level) + 1
    return levels


def _open_ended(before: list[str]) -> Callable[[str], bool]:
    if not before:
        return lambda topic: topic[:1] != "$"
    if "*" not in before:
        prefix = ".".join(before) + "."
        return lambda topic: topic.startswith(prefix)
    head, length, owns = before, len(before), before[0].startswith("$")

    def matches(topic: str) -> bool:
        levels = topic.split(".")
        return len(levels) > length and topic.startswith("$") == owns and _fits(head, levels)

    return matches


def _fixed_length(pattern: list[str]) -> Callable[[str], bool]:
    length, owns = len(pattern), pattern[0].startswith("$")

    def matches(topic: str) -> bool:
        levels = topic.split(".")
        return len(levels) == length and topic.startswith("$") == owns and _fits(pattern, levels)

    return matches


def _fits(pattern: list[str], levels: list[str]) -> bool:
    # Of levels, only as many as the pattern has are looked at: zip ends there.
    return all(part in ("*", level) for part, level in zip(pattern, levels, strict=False))


def _expression(text: str) -> Callable[[str], bool]:
    if len(text) > MAX_EXPRESSION:
        raise _bad(text, f"an expression has {MAX_EXPRESSION} characters at most", MAX_EXPRESSION + 1)
    # Such a one would be taken and then name nothing, with nobody told: no topic is empty, or goes on behind its end.
    within = text[1:].lstrip("^")
    if not within:
        raise _bad(text, "an empty expression names no topic", 2)
    if within.startswith("$"):
        column = len(text) - len(within) + 1
        raise _bad(text, "'$' is the end of a topic here, and \\$ the sign", column)
    try:
        full = compile_pattern(text[1:]).fullmatch
    except UnicodeEncodeError as error:
        raise _bad(ascii(text), "half a surrogate pair isn't a character", error.start + 2) from None
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "it isn't RE2"
        raise _bad(text, reason, 2) from None
    owns = text.startswith("~\\$")
    return lambda topic: topic.startswith("$") == owns and full(topic.encode(errors="replace")) is not None


def is_subpattern(one: TopicPattern, other: TopicPattern) -> bool:
    """Whether certainly every topic that `one` names is one that `other` names."""
    if one.text == other.text:
        return True
    if one.exact is not None:
        return other.matches(one.exact)
    if _is_expression(one) or _is_expression(other):
        return False
    mine, others = one.text.split("."), other.text.split(".")
    if _is_own(mine) != _is_own(others):
        return False
    return levels_cover(others, mine)


def are_disjoint(one: TopicPattern, other: TopicPattern) -> bool:
    """Whether certainly no topic is named by both."""
    if one.exact is not None:
        return not other.matches(one.exact)
    if other.exact is not None:
        return not one.matches(other.exact)
    if _is_expression(one) or _is_expression(other):
        return False
    mine, others = one.text.split("."), other.text.split(".")
    if _is_own(mine) != _is_own(others):
        return True
    for level, another in zip(mine, others, strict=False):
        if ">" in (level, another):
            return False
        if "*" not in (level, another) and level != another:
            return True
    return len(mine) != len(others)


def _is_expression(pattern: TopicPattern) -> bool:
    return pattern.text.startswith("~")


def _is_own(levels: list[str]) -> bool:
    """Topics that start with `$` are named only by patterns that do."""
    return levels[0].startswith("$")
