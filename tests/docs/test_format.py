"""Test vectors of docs/format.md equal the bytes that the code writes."""

from __future__ import annotations

import re
from pathlib import Path

from broker_core.batch import Batch, hash64
from tests.broker_core.batch.test_batch import GOLDEN

TEXT = (Path(__file__).parents[2] / "docs" / "format.md").read_text()


def test_the_batch_of_the_document_is_the_golden_one() -> None:
    (block,) = re.findall(r"```\n(534c42[0-9a-f\n]+)```", TEXT)
    assert block.replace("\n", "") == GOLDEN
    batch = Batch.parse(bytes.fromhex(GOLDEN))
    assert (batch.origin, batch.header.publisher) == (hash64("inst"), hash64("pub"))


def test_the_hash_of_the_document_is_that_of_the_code() -> None:
    (name, digest) = re.findall(r"hash of the name `([^`]+)` is the eight bytes `([0-9a-f]{16})`", TEXT)[0]
    assert hash64(name).to_bytes(8, "little").hex() == digest
