from __future__ import annotations

from datetime import UTC, datetime

import pytest

from console.units.moments import bookmark_of_moment, parse_moment

AT = datetime(2026, 11, 22, 12, 45, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-22T12:45:00Z",
        "2026-11-22 12:45",
        "2026-11-22 12:45:00 UTC",
        "2026-11-22T13:45:00+01:00",
        "2026-11-22 18:30+05:45",
        "2026-11-22T07:45:00-0500",
        " 2026-11-22T13:45+01 ",
    ],
)
def test_an_offset_is_counted(text: str) -> None:
    assert parse_moment(text) == AT
    assert bookmark_of_moment(parse_moment(text) or datetime.max) == "20261122T124500.000000Z"


@pytest.mark.parametrize("text", ["", "yesterday", "0001-01-01T00:00:00+01:00", "2026-11-22T13:45 01:00"])
def test_what_is_no_moment(text: str) -> None:
    assert parse_moment(text) is None
