"""The tables that jobs write and report, in Arrow."""

from __future__ import annotations

import pyarrow as pa

from sluice_spark.columns import MOMENT

CLIENT_HOURS = pa.schema(
    [
        ("client", pa.string()),
        ("hour", MOMENT),
        ("samples", pa.int64()),
        ("lag_messages_max", pa.int64()),
        ("lag_messages_mean", pa.float64()),
        ("lag_bytes_max", pa.int64()),
        ("lag_ms_max", pa.int64()),
        ("offline_episodes", pa.int64()),
        ("offline_ms", pa.int64()),
        ("connects", pa.int64()),
        ("disconnects", pa.int64()),
    ]
)
"""One row per client and hour of UTC."""

WRITTEN = pa.schema(
    [
        ("file", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("error", pa.string()),
    ]
)
"""What a worker reports of each file it put into the lake; `error` is a SluiceError's JSON, alone in its row."""
