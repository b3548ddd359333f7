"""BatchEvaluator: filters over a batch, with records that aren't JSON, each record decoded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.filters import BatchEvaluator, batch_evaluator, compile_filter, message_types

BODIES = [b'{"a":1}', b"not json", b'{"a":2}', b"", b'{"a":3}', b"\xff\xfe", b"7", b'{"a":1', b'[{"a":2}]']


def batch_of(bodies: list[bytes]) -> Batch:
    return Batch.parse(build_single_topic_batch("publisher", "t", bodies))


def test_records_that_are_not_json_pass_no_filter() -> None:
    evaluator = BatchEvaluator(batch_of(BODIES), None)
    assert evaluator.rows(compile_filter("/a >= 2")).tolist() == [2, 4, 8]
    assert evaluator.rows(compile_filter("/b IS NULL")).tolist() == [0, 2, 4, 6, 8]
    assert evaluator.rows(compile_filter("TRUE")).tolist() == [0, 2, 4, 6, 8]


def test_only_candidates_are_looked_at() -> None:
    evaluator = BatchEvaluator(batch_of(BODIES), None)
    assert evaluator.rows(compile_filter("/a >= 2"), np.array([0, 1, 4])).tolist() == [4]
    assert evaluator.rows(compile_filter("/a >= 2"), np.array([2, 7])).tolist() == [2]
    assert evaluator.rows(compile_filter("/a >= 2")).tolist() == [2, 4, 8]


def test_the_same_question_gets_the_same_array() -> None:
    evaluator = BatchEvaluator(batch_of(BODIES), None)
    candidates = np.array([0, 2])
    one, other = compile_filter("/a > 0"), compile_filter("/a > 1")
    assert evaluator.rows(one, candidates) is evaluator.rows(one, candidates)
    assert evaluator.rows(one) is evaluator.rows(one)
    assert evaluator.rows(one) is not evaluator.rows(other)
    assert evaluator.rows(one, candidates) is candidates, "all of them pass"


def test_each_record_is_decoded_once_whatever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []

    class CountingDecoder:
        JSONDecodeError = orjson.JSONDecodeError

        @staticmethod
        def loads(body: bytes) -> Any:
            decoded.append(body)
            return orjson.loads(body)

    for module in (batch_evaluator, message_types):
        monkeypatch.setattr(module, "orjson", CountingDecoder)
    bodies = [b'{"a":%d}' % number for number in range(20)]
    evaluator = BatchEvaluator(batch_of(bodies), None)
    evaluator.rows(compile_filter("/a > 3"), np.array([1, 5]))
    assert decoded == [bodies[1], bodies[5]]
    for limit in range(10):
        evaluator.rows(compile_filter(f"/a > {limit}"))
    assert sorted(decoded) == sorted(bodies)
