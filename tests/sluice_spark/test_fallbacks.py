"""Fallbacks for packages that an executor may lack give equal results."""

from __future__ import annotations

import random
import sys
import zlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib

from broker_core import checksum as real
from sluice_spark import fallbacks


@given(st.binary(max_size=40), st.integers(0, 2**32 - 1))
def test_the_checksum_of_few_bytes(data: bytes, before: int) -> None:
    assert fallbacks.crc32c(data, before) == real.crc32c(data, before)


@pytest.mark.parametrize("length", [4_095, 4_096, 4_097, 8_192, 256 * 4_096 + 3, 3_000_001])
def test_the_checksum_of_many_bytes(length: int) -> None:
    data = random.Random(length).randbytes(length)
    assert fallbacks.crc32c(data) == real.crc32c(data)
    assert fallbacks.crc32c(data[5:], real.crc32c(data[:5])) == real.crc32c(data)


def test_zlib_reads_what_isal_wrote_in_the_forms_of_the_journal() -> None:
    raw = b"a record " * 10_000
    packer = isal_zlib.compressobj(2, isal_zlib.DEFLATED, -15)
    packed = packer.compress(raw) + packer.flush()
    (package,) = fallbacks._isal()
    assert package.isal_zlib.decompress(packed, -15, len(raw) + 1) == raw
    assert package.isal_zlib.crc32(raw) == zlib.crc32(raw) == isal_zlib.crc32(raw)
    with pytest.raises(package.isal_zlib.error):
        package.isal_zlib.decompress(b"nothing", -15, 9)


def test_json_reads_and_writes_as_orjson_does() -> None:
    (module,) = fallbacks._orjson()
    value = {"a": [1, 2.5, None, True, "é"]}
    assert module.dumps(value) == orjson.dumps(value)
    assert module.loads(orjson.dumps(value)) == value
    for wrong in (b"{", b"\xff"):
        with pytest.raises(module.JSONDecodeError):
            module.loads(wrong)


def test_what_is_installed_stays() -> None:
    before = {name: sys.modules[name] for name in ("fastcrc", "orjson", "isal")}
    fallbacks.install_fallbacks()
    assert {name: sys.modules[name] for name in before} == before
