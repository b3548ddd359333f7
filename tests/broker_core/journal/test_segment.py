"""The segment header and file names: golden bytes, and invalid ones that are refused."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from broker_core.errors import JournalError, OperatorError
from broker_core.journal.segment import (
    HEADER_SIZE,
    decode_header,
    encode_header,
    find_segment_files,
    header_crc,
    new_header,
    parse_segment_name,
    parse_segment_path,
    segment_name,
)

LOG = UUID("00112233-4455-6677-8899-aabbccddeeff")
GOLDEN = (
    "534c554943454a31"  # SLUICEJ1
    "01000000"  # version
    "41289631"  # header_crc
    "e59f9c2f015bb883"  # origin
    "07000000"  # epoch
    "00000000"
    "2a00000000000000"  # first sequence 42
    "00ca9a3b00000000"  # created at 1 s
    "0800"  # name length
    "736c756963652d31"  # sluice-1
)


def header() -> bytes:
    return encode_header(new_header("sluice-1", 7, 42, 1_000_000_000, LOG))


def test_header_golden_bytes():
    raw = header()
    assert len(raw) == HEADER_SIZE
    assert raw[:58].hex() == GOLDEN
    assert raw[114:130] == LOG.bytes
    assert not any(raw[58:114]) and not any(raw[130:])


def test_header_comes_back():
    found = decode_header(header(), Path("x"))
    assert found == new_header("sluice-1", 7, 42, 1_000_000_000, LOG)._replace(crc=header_crc(header()))


@pytest.mark.parametrize("offset", [0, 8, 12, 16, 32, 50, 114, 4_095])
def test_header_with_a_flipped_byte_is_refused(offset):
    raw = bytearray(header())
    raw[offset] ^= 1
    with pytest.raises(JournalError) as caught:
        decode_header(raw, Path("x"))
    assert caught.value.code == "journal_damaged"


def test_header_cut_off_is_refused():
    with pytest.raises(JournalError):
        decode_header(header()[:100], Path("x"))


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("a.00000000000000000007.journal", (7, False)),
        ("a.00000000000000000007.journal.gz", (7, True)),
        ("a.00000000000000000007.index.gz", None),
        ("a.00000000000000000007.journal.torn.4096", None),
        ("a.0000000007.journal", None),
        ("a.b.00000000000000000007.journal", None),
        ("b.00000000000000000007.journal", None),
        ("a.\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661" * 2 + ".journal", None),
    ],
)
def test_names(name, parsed):
    assert parse_segment_name(name, "a") == parsed


def test_an_instance_name_may_hold_dots():
    name = segment_name("a.b", 7)
    assert parse_segment_name(name, "a.b") == (7, False)
    assert parse_segment_name(name, "a") is None
    assert parse_segment_path(Path(name)) == ("a.b", 7)


def test_a_name_that_is_no_segment():
    with pytest.raises(OperatorError):
        parse_segment_path(Path("notes.journal"))


def test_discover_lists_older_forms_first(tmp_path):
    live, archive = tmp_path / "live", tmp_path / "archive"
    live.mkdir()
    archive.mkdir()
    for path in (
        archive / segment_name("a", 1),
        live / segment_name("a", 1, compressed=True),
        live / segment_name("a", 1),
        live / segment_name("b", 1),
        live / "other",
    ):
        path.touch()
    found = [(file.path.parent.name, file.compressed) for file in find_segment_files(live, "a", archive)]
    assert found == [("live", False), ("live", True), ("archive", False)]
