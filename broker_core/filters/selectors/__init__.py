"""Selectors: JMS conditions (a subset of SQL-92) over a record's headers, as STOMP clients write them.

    parser     splits text into tokens and compiles them to a test, by operator precedence
    values     comparison, calculation and LIKE on headers, which are texts

In a filter's text, a selector follows `[selector] ` on one line. A filter over the body may follow on the
next line.
"""

from __future__ import annotations

from broker_core.filters.selectors.parser import compile_selector

MARK = "[selector] "


def join_filter_text(selector: str, body_filter: str) -> str:
    """Join a selector and a filter over the body to one filter text. Either may be empty."""
    if not selector.strip():
        return body_filter
    line = f"{MARK}{' '.join(selector.splitlines())}"
    return f"{line}\n{body_filter}" if body_filter else line


def split_filter_text(text: str) -> tuple[str, str]:
    """Split a filter text into its selector and its filter over the body; "" for a missing one."""
    if not text.startswith(MARK):
        return "", text
    selector, _, body_filter = text.removeprefix(MARK).partition("\n")
    return selector, body_filter


__all__ = ["MARK", "compile_selector", "join_filter_text", "split_filter_text"]
