r"""Topic patterns, and relations between them. The levels of a topic are separated by ".".

    flights.AA          this topic
    flights.*.delays    "*" matches one whole level
    flights.>           ">" matches one level or more, at the end
    ~flights\.(AA|DL)   "~" and a regular expression (RE2) that the whole topic must match

Topics that start with "$" belong to the broker. Only a pattern that starts with "$" itself (or "~\$") matches
them, so a subscription to ">" doesn't get the broker's events.

`is_subpattern` and `are_disjoint` compare patterns without a list of topics. For patterns with levels the
answer is exact. For regular expressions it is unknown in general: both functions return False when they can't
be certain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import re2

from broker_core.config.scopes import levels_cover
from broker_core.errors import ClientError
from broker_core.filters.parser import compile_pattern

MAX_PATTERN_BYTES = 255
"""Maximum bytes of a pattern that isn't an expression; equal to the limit of a topic."""
MAX_EXPRESSION = 1_024
"""Maximum characters of a regular expression for topics."""
_FIX = "Use a topic, a.*.b, a.>, or ~ and a regular expression."


class TopicPattern:
    """Parsed topic pattern. `exact` is the topic when the pattern matches only one, else None.

    `levels` are those of a pattern that matches at least the topics of this one; an index finds the pattern
    by them. Regular expressions have None.
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
        """Parse a pattern. Raises ClientError bad_pattern with details["column"], counted from 1."""
        return _parse(text)

    def matches(self, topic: str) -> bool:
        """Return whether the pattern matches a topic."""
        return self._test(topic)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicPattern) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"TopicPattern({self.text!r})"


def _bad(text: str, reason: str, column: int) -> ClientError:
    return ClientError(
        "bad_pattern",
        f"{text[:80]!r} isn't a topic pattern: {reason} (column {column}).",
        _FIX,
        column=column,
    )


@lru_cache(maxsize=512)
def _parse(text: str) -> TopicPattern:
    """Parse and compile a pattern; the newest 512 are cached."""
    if text.startswith("~"):
        return TopicPattern(text, None, _expression(text))
    levels = _levels(text)
    if levels[-1] == ">":
        return TopicPattern(text, None, _open_ended(levels[:-1]), tuple(levels))
    if "*" in levels:
        return TopicPattern(text, None, _fixed_length(levels), tuple(levels))
    return TopicPattern(text, text, text.__eq__, tuple(levels))


def _levels(text: str) -> list[str]:
    """Return the levels of a pattern. Raises ClientError bad_pattern."""
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
    """Return the test for `a.*.>`: the levels before `>`, then at least one more."""
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
    """Return the test for a pattern with `*` and without `>`."""
    length, owns = len(pattern), pattern[0].startswith("$")

    def matches(topic: str) -> bool:
        levels = topic.split(".")
        return len(levels) == length and topic.startswith("$") == owns and _fits(pattern, levels)

    return matches


def _fits(pattern: list[str], levels: list[str]) -> bool:
    """Return whether a topic's first levels match those of a pattern."""
    # zip stops after the pattern's levels, so further levels of the topic are ignored.
    return all(part in ("*", level) for part, level in zip(pattern, levels, strict=False))


def _expression(text: str) -> Callable[[str], bool]:
    """Compile the regular expression of a pattern. Raises ClientError bad_pattern."""
    if len(text) > MAX_EXPRESSION:
        raise _bad(text, f"an expression has {MAX_EXPRESSION} characters at most", MAX_EXPRESSION + 1)
    # Refuse expressions that match no topic: a subscriber would wait without an error. No topic is empty, or
    # continues after its end.
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
    """Return whether certainly every topic that `one` matches is also matched by `other`."""
    if one.text == other.text:
        return True
    if one.exact is not None:
        return other.matches(one.exact)
    if _is_expression(one) or _is_expression(other):
        return False
    levels, other_levels = one.text.split("."), other.text.split(".")
    if _is_reserved(levels) != _is_reserved(other_levels):
        return False
    return levels_cover(other_levels, levels)


def are_disjoint(one: TopicPattern, other: TopicPattern) -> bool:
    """Return whether certainly no topic is matched by both patterns."""
    if one.exact is not None:
        return not other.matches(one.exact)
    if other.exact is not None:
        return not one.matches(other.exact)
    if _is_expression(one) or _is_expression(other):
        return False
    levels, other_levels = one.text.split("."), other.text.split(".")
    if _is_reserved(levels) != _is_reserved(other_levels):
        return True
    for level, another in zip(levels, other_levels, strict=False):
        if ">" in (level, another):
            return False
        if "*" not in (level, another) and level != another:
            return True
    return len(levels) != len(other_levels)


def _is_expression(pattern: TopicPattern) -> bool:
    return pattern.text.startswith("~")


def _is_reserved(levels: list[str]) -> bool:
    """Return whether a pattern starts with `$`; only such patterns match topics that start with `$`."""
    return levels[0].startswith("$")
