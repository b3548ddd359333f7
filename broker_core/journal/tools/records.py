"""Records as JSON lines, for people and scripts: `journal dump` and `journal grep`."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import orjson

from broker_core.batch import HEADER_SIZE, ROW_SIZE, Batch, Rows
from broker_core.safe_text import escape_json
from broker_core.subscriptions.topics import TopicPattern

EVERY_TOPIC: Final = TopicPattern("every topic", None, lambda topic: True)
"""The broker's own too, which `>` doesn't match."""


def lines(batch: Batch, rows: Rows, instance: str, segment: str | None = None) -> Iterator[bytes]:
    """One JSON object for each of the rows of a journaled batch; nothing is done for the others.

    A body is `data` when it is JSON, `text` when it is UTF-8, `base64` otherwise; `headers` are base64, if any.
    """
    header, table, view = batch.header, batch.rows, memoryview(batch.buf)
    texts = HEADER_SIZE + header.dictionary_length + header.count * ROW_SIZE
    head_ends = texts + np.cumsum(table["headers"], dtype=np.int64)
    body_ends = texts + header.headers_length + np.cumsum(table["body"], dtype=np.int64)
    names, publisher = batch.topics, batch.publisher_name
    for row, head_end, body_end, chosen in zip(
        rows.tolist(), head_ends[rows].tolist(), body_ends[rows].tolist(), table[rows].tolist(), strict=True
    ):
        head_length, body_length, topic, _, delta = chosen
        line: dict[str, Any] = {
            "bookmark": f"{instance}|{header.first_sequence + row}|",
            "topic": names[topic - 1],
            "accepted_at": header.accepted_at,
            "publisher": publisher,
            "publisher_sequence": header.first_publisher_sequence and header.first_publisher_sequence + delta,
            **_body(bytes(view[body_end - body_length : body_end])),
        }
        if head_length:
            line["headers"] = base64.b64encode(view[head_end - head_length : head_end]).decode()
        if segment is not None:
            line["segment"] = segment
        yield escape_json(orjson.dumps(line))


def _body(body: bytes) -> dict[str, Any]:
    try:
        return {"data": orjson.Fragment(body) if orjson.loads(body) is not None else None}
    except orjson.JSONDecodeError:
        pass
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}
