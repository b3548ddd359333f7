"""Moments as operators type them, in pages, forms and addresses."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_moment(text: str) -> datetime | None:
    """Return the moment of a text in ISO 8601, in UTC; None if it is no moment.

    A text without an offset, or with the word UTC as on pages, is UTC. A moment outside Python's range in
    UTC is none.
    """
    try:
        at = datetime.fromisoformat(text.strip().removesuffix(" UTC"))
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def bookmark_of_moment(at: datetime) -> str:
    """Return the bookmark of a moment in UTC, such as 20261122T134500.000000Z."""
    return at.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
