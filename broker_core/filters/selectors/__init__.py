"""Selectors: JMS's conditions (a part of SQL-92) over a record's headers, as STOMP clients write them.

    parser     text to tokens, tokens to a test, by precedence
    values     what comparing, calculating and LIKE mean where headers are texts

As a filter's text a selector stands behind `[selector] `, on one line; a filter over the body may follow on the next.
"""

from __future__ import annotations

from broker_core.filters.selectors.parser import compile_selector

MARK = "[selector] "


def join_filter_text(selector: str, body_filter: str) -> str:
    """A selector, a filter over the body, or both, as the one text that a subscription has; "" for neither."""
    if not selector.strip():
        return body_filter
    line = f"{MARK}{' '.join(selector.splitlines())}"
    return f"{line}\n{body_filter}" if body_filter else line


def split_filter_text(text: str) -> tuple[str, str]:
    """The selector and the filter over the body in such a text; "" for what isn't there."""
    if not text.startswith(MARK):
        return "", text
    selector, _, body_filter = text.removeprefix(MARK).partition("\n")
    return selector, body_filter


__all__ = ["MARK", "compile_selector", "join_filter_text", "split_filter_text"]
