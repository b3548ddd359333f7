"""Options of format("sluice"), their values and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_core.errors import SluiceError
from sluice_spark.options import RangeBound, read_options
from tests.pipeline.support import INSTANCE, NOON, fill, journal_location, journal_target


def parsed_options(home: Path, **options: str) -> tuple[RangeBound, RangeBound]:
    request = read_options({"path": str(journal_location(home).directory), **options}).request
    return RangeBound(request.start, request.start_at), RangeBound(request.end, request.end_at)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("", RangeBound()),
        ("0", RangeBound()),
        ("17", RangeBound(17)),
        ("sluice-1|17|", RangeBound(17)),
        ("20261121T120000Z", RangeBound(at=NOON)),
        ("2026-11-21T12:00:00Z", RangeBound(at=NOON)),
        ("2026-11-21 12:00", RangeBound(at=NOON)),
        ("2026-11-21T13:00:00+01:00", RangeBound(at=NOON)),
        ("2026-11-21T12:00:00.123456789Z", RangeBound(at=NOON + 123_456_789)),
        ("2026-11-21T13:00:00.5+01:00", RangeBound(at=NOON + 500_000_000)),
        ("2026-11-21", RangeBound(at=NOON - 12 * 3_600 * 10**9)),
    ],
)
def test_a_bound_is_a_number_a_bookmark_or_a_time(tmp_path: Path, text: str, bound: RangeBound) -> None:
    fill(tmp_path, [1])
    assert parsed_options(tmp_path, start=text) == (bound, RangeBound())
    assert parsed_options(tmp_path, END=text) == (RangeBound(), bound)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"start": "yesterday"}, "bad_setting: start: 'yesterday' isn't a bookmark"),
        ({"start": "other|5|"}, "other_origin: other.5. was accepted by other"),
        ({"end": "[1:2]"}, "bad_setting: end: "),
        ({"start": "sluice-1|1|,sluice-1|2|"}, "bad_setting: start is"),
        ({"start": "2026-13-01"}, "bad_setting: start is '2026-13-01', which isn't a valid time"),
        ({"gaps": "ignore"}, "bad_setting: gaps is 'ignore'"),
        ({"topic": "a"}, "bad_setting: There is no option 'topic'"),
        ({"topics": "a..b"}, "bad_pattern"),
        ({"topics": "[1]"}, "bad_setting: .* isn't a list of texts"),
        ({"columns": "sequence,nothing"}, "bad_columns: nothing can't be read"),
        ({"filter": "/a ="}, "bad_filter"),
        ({"message_type": "xml"}, "bad_setting: The message type 'xml' is unknown"),
        ({"max_rows": "0"}, "bad_setting: max_rows is '0'"),
        ({"partition_mb": "many"}, "bad_setting: partition_mb is 'many'"),
        ({"reader": "a/b"}, "bad_setting: 'a/b' can't be a reader's name"),
        ({"lease_hours": "1000"}, "bad_setting: lease_hours is 1000"),
        ({"path": "/nowhere"}, "no_journal: The journal directory /nowhere doesn't exist"),
        ({"path": ""}, "bad_setting: The option path is missing"),
        ({"start": "5", "end": "4"}, "bad_range"),
    ],
)
def test_what_cannot_be_meant_is_said_in_a_sentence(
    tmp_path: Path, options: dict[str, str], sentence: str
) -> None:
    fill(tmp_path, [1])
    with pytest.raises(SluiceError, match=sentence):
        read_options({"path": str(journal_location(tmp_path).directory), **options})


def test_lists_are_written_with_commas_or_as_json(tmp_path: Path) -> None:
    fill(tmp_path, [1])
    path = str(journal_location(tmp_path).directory)
    for text, topics in [
        ("a, b.>", ("a", "b.>")),
        ('["a", "~b,c"]', ("a", "~b,c")),
        ("~b,c", ("~b,c",)),
    ]:
        assert read_options({"path": path, "topics": text}).request.topics == topics
    assert read_options({"path": path, "columns": "topic,body"}).request.columns == ("topic", "body")


def test_archive_and_instance_are_found_where_they_are_plain(tmp_path: Path) -> None:
    fill(tmp_path, [1])
    place = journal_location(tmp_path)
    assert place.archive is not None
    assert read_options({"path": str(place.directory)}).location == place
    place.archive.rmdir()
    assert read_options({"path": str(place.directory)}).location.archive is None
    (place.directory / f"sluice-2.{1:020d}.journal").touch()
    with pytest.raises(SluiceError, match="holds the journals of sluice-1, sluice-2"):
        read_options({"path": str(place.directory)})
    assert (
        read_options({"path": str(place.directory), "instance": "sluice-2"}).location.instance == "sluice-2"
    )
    assert INSTANCE == "sluice-1"


@pytest.mark.parametrize("action", ["compress", "archive"])
def test_what_is_prepared_for_a_swap_is_nobodys_journal(tmp_path: Path, action: str) -> None:
    fill(tmp_path, [50] * 4)
    segment = sorted(journal_location(tmp_path).directory.glob("*.journal"))[0]
    journal_target(tmp_path, segment, action).write_bytes(segment.read_bytes())
    assert read_options({"path": str(journal_location(tmp_path).directory)}).location.instance == INSTANCE
