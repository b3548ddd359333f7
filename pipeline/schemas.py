"""Arrow schemas of the tables that jobs write and report."""

from __future__ import annotations

import pyarrow as pa

from sluice_spark.columns import MOMENT

CLIENT_HOURS = pa.schema(
    [
        ("client", pa.string()),
        ("transport", pa.string()),
        ("hour", MOMENT),
        ("samples", pa.int64()),
        ("connected_ms", pa.int64()),
        ("lag_messages_max", pa.int64()),
        ("lag_messages_mean", pa.float64()),
        ("lag_bytes_max", pa.int64()),
        ("lag_ms_max", pa.int64()),
        ("outbox_bytes_max", pa.int64()),
        ("spool_bytes_max", pa.int64()),
        ("delivered_messages", pa.int64()),
        ("delivered_bytes", pa.int64()),
        ("rate_max", pa.float64()),
        ("offline_episodes", pa.int64()),
        ("offline_ms", pa.int64()),
        ("draining_ms", pa.int64()),
        ("replaying_ms", pa.int64()),
        ("paused_ms", pa.int64()),
        ("connects", pa.int64()),
        ("disconnects", pa.int64()),
        ("warned", pa.int64()),
        ("offlined", pa.int64()),
        ("disconnected", pa.int64()),
        ("other_acts", pa.int64()),
        ("shadow_acts", pa.int64()),
        ("lost_messages", pa.int64()),
    ]
)
"""Hourly client history: one row per client, transport and hour (UTC)."""

WRITTEN = pa.schema(
    [
        ("file", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("unfit", pa.int64()),
        ("not_json", pa.int64()),
        ("new_fields", pa.string()),
        ("error", pa.string()),
    ]
)
"""A worker's report of each file that it wrote to the lake.

With typed columns: `unfit` and `not_json` count values and bodies that didn't fit, and `new_fields` names
some fields without a column, separated by blanks. `error` is a SluiceError as JSON; its row has nothing
else.
"""
