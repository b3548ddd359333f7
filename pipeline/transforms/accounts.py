"""Check that recorded accounts add up: acknowledged + in flight + waiting + discarded = matched. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import pyarrow as pa

from broker_core.documents.system_records import ClientEvent

SUMS: Final = ("matched", "acknowledged", "in_flight", "waiting", "gone")
ACCOUNTS: Final = pa.schema(
    [
        ("client", pa.string()),
        ("sequence", pa.int64()),
        ("what", pa.string()),
        *((name, pa.int64()) for name in SUMS),
        ("checked", pa.int64()),
    ]
)
"""Findings, one a row.

The last row of a span has no client; its `checked` is the number of accounts checked.
"""
MAX_PROBLEMS: Final = 1_000
"""Maximum findings of one span."""


def check_account_rows(records: Iterable[tuple[int, bytes]]) -> Iterator[dict[str, object]]:
    """Yield findings in records (sequence, body) of `$SLUICE.clients`, in log order.

    The last row has no client, and the number of accounts checked.
    """
    before: dict[str, tuple[int, ...]] = {}
    looked = found = 0
    for sequence, body in records:
        try:
            event = msgspec.json.decode(body, type=ClientEvent)
        except msgspec.DecodeError:
            continue
        if event.event == "connect":
            before.pop(event.client, None)
        if event.matched_messages is None:
            continue  # another kind of event
        looked += 1
        sums = tuple(getattr(event, f"{name}_messages") or 0 for name in SUMS)
        for finding in _wrong(sums, before.get(event.client)):
            found += 1
            if found <= MAX_PROBLEMS:
                yield {
                    "client": event.client,
                    "sequence": sequence,
                    "what": finding,
                    "checked": 0,
                    **dict(zip(SUMS, sums, strict=True)),
                }
        before[event.client] = sums
        if event.event == "disconnect":
            before.pop(event.client, None)
    yield {"client": None, "sequence": 0, "what": "", "checked": looked}


def _wrong(sums: tuple[int, ...], before: tuple[int, ...] | None) -> Iterator[str]:
    matched, *parts = sums
    if sum(parts) != matched:
        yield f"{sum(parts) - matched:+,} messages"
    if min(sums) < 0:
        yield "less than none"
    if before is not None and (matched < before[0] or sums[1] < before[1]):
        yield "less than before"
