"""Globs over names of clients and files: `*` is any text, `?` one character, `~` begins an RE2 expression."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import re2

from broker_core.errors import OperatorError

MAX_CHARACTERS = 255
_OTHERS = {"*": ".*", "?": "."}


@lru_cache(maxsize=256)
def compile_glob(pattern: str) -> Callable[[str], bool]:
    """Return a function that tests whether a whole name matches. An empty pattern matches every name.

    Raises:
        OperatorError: `bad_pattern`.
    """
    if len(pattern) > MAX_CHARACTERS or "\x00" in pattern:
        raise _bad(pattern, f"it has more than {MAX_CHARACTERS} characters")
    if not pattern or pattern == "*":
        return lambda name: True
    text = (
        pattern[1:]
        if pattern.startswith("~")
        else "".join(_OTHERS.get(one) or re2.escape(one) for one in pattern)
    )
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.dot_nl = True
    options.max_mem = 1024 * 1024
    try:
        found = re2.compile(text, options=options).fullmatch
    except (re2.error, UnicodeEncodeError) as problem:
        raise _bad(pattern, str(problem)) from None
    return lambda name: found(name) is not None


def _bad(pattern: str, problem: str) -> OperatorError:
    return OperatorError(
        "bad_pattern",
        f"{pattern[:80]!r} isn't a name pattern: {problem}.",
        "Use * and ?, or ~ and a regular expression.",
    )
