"""System records are decoded as they were encoded, and other bytes are refused."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.documents.system_records import (
    WIDTH,
    TrafficEntry,
    TrafficRowKey,
    pack_samples,
    unpack_samples,
)

NUMBER = st.integers(-(2**63), 2**63 - 1)
ROW = st.tuples(
    st.builds(TrafficRowKey, st.text(), st.text(), st.text(), NUMBER, st.text()),
    st.lists(NUMBER, min_size=WIDTH, max_size=WIDTH),
)


@given(st.lists(ROW, max_size=20))
def test_what_is_packed_comes_out_again(rows: list[tuple[TrafficRowKey, list[int]]]) -> None:
    figures = array("q", [number for _, numbers in rows for number in numbers])
    entry = msgspec.json.decode(
        msgspec.json.encode(pack_samples(7, [who for who, _ in rows], figures, 3)), type=TrafficEntry
    )
    assert (entry.at, entry.rows, entry.left_out) == (7, len(rows), 3)
    whose, columns = unpack_samples(entry)
    assert whose == [who for who, _ in rows]
    assert [list(one) for one in zip(*columns, strict=True)] == [numbers for _, numbers in rows]


@dataclass
class InvalidRecord:
    rows: int
    packed: str


@pytest.mark.parametrize(
    "wrong", [InvalidRecord(1, "!"), InvalidRecord(1, "AAAA"), InvalidRecord(2, "")], ids=repr
)
def test_what_is_no_record_of_traffic_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="not a record of traffic"):
        unpack_samples(TrafficEntry(at=1, rows=wrong.rows, packed=wrong.packed))


def test_a_record_whose_rows_are_fewer_than_it_says_is_refused() -> None:
    entry = pack_samples(1, [], array("q"), 0)
    with pytest.raises(ValueError, match="number of rows"):
        unpack_samples(TrafficEntry(at=1, rows=1, packed=entry.packed))
