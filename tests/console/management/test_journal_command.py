"""`manage.py journal`: arguments, output and exit codes. Tests of the journal package check the results."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.group.settings import GroupSettings
from broker_core.journal.journal import Journal
from console.models import GroupMember, Instance
from console.services.journal_directories import known_log


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    journal = Journal.open(tmp_path / "journal", "a", tmp_path / "archive")
    batch = Batch.parse(build_single_topic_batch("p", "t", [b'{"n": 1}', b'{"n": 2}'], 1))
    batch.stamp(origin=journal.origin, epoch=journal.epoch, first_sequence=1, accepted_at=10**18)
    journal.write([batch])
    journal.close()
    return ["--instance=a", f"--directory={tmp_path / 'journal'}", f"--archive={tmp_path / 'archive'}"]


def run(*words: str) -> str:
    out = io.StringIO()
    call_command("journal", *words, stdout=out)
    return out.getvalue()


def test_ls(place: list[str]) -> None:
    text = run("ls", *place)
    assert "a.00000000000000000001.journal" in text
    assert "2001-09-09T01:46:40" in text
    assert "1 segments" in text
    assert json.loads(run("ls", "--json", *place))["records"] == 2


def test_verify(place: list[str]) -> None:
    assert run("verify", *place).startswith("ok ")
    assert json.loads(run("verify", "--json", *place))["ok"] is True


def test_verify_of_a_damaged_journal_ends_with_an_error(place: list[str], tmp_path: Path) -> None:
    with (tmp_path / "journal" / "a.00000000000000000001.journal").open("r+b") as file:
        file.seek(20)
        file.write(b"\xff")
    with pytest.raises(CommandError, match="1 segments are damaged"):
        run("verify", *place)


def test_dump(place: list[str]) -> None:
    lines = [json.loads(line) for line in run("dump", *place, "--from", "2").splitlines()]
    assert lines == [
        {
            "bookmark": "a|2|",
            "topic": "t",
            "accepted_at": 10**18,
            "publisher": "p",
            "publisher_sequence": 2,
            "data": {"n": 2},
        }
    ]


@pytest.mark.django_db
def test_accept_takes_the_log_as_it_is_and_tells_the_control_plane(
    place: list[str], tmp_path: Path, settings: Any
) -> None:
    settings.SLUICE_JOURNAL_DIRECTORY, settings.SLUICE_ARCHIVE_DIRECTORY = (
        tmp_path / "journal",
        tmp_path / "archive",
    )
    known = Instance.objects.create(name="a", log=uuid4(), frontier=45)
    with pytest.raises(CommandError, match=r"isn't the log.*journal accept --instance a"):
        run("repair", "--instance=a")
    assert "2 records retained, next is 46" in run("accept", "--instance=a")
    known.refresh_from_db()
    journal = Journal.open(tmp_path / "journal", "a", tmp_path / "archive", known=known_log("a"))
    assert (known.log, known.frontier, journal.next_sequence) == (journal.identity, 45, 46)
    journal.close()


@pytest.mark.django_db
def test_accept_in_a_group_is_about_the_member_whose_journal_it_is(
    place: list[str], tmp_path: Path, settings: Any
) -> None:
    settings.SLUICE_JOURNAL_DIRECTORY = tmp_path / "journal"
    settings.SLUICE_ARCHIVE_DIRECTORY = tmp_path / "archive"
    settings.SLUICE_GROUP = GroupSettings("a", "m", ("nats://127.0.0.1:1",))
    instance = Instance.objects.create(name="a", log=uuid4(), frontier=2)
    before = instance.log
    own = GroupMember.objects.create(instance=instance, name="m", log=uuid4(), frontier=45)
    other = GroupMember.objects.create(instance=instance, name="n", log=uuid4(), frontier=99)
    with pytest.raises(CommandError, match=r"that of the member m, not of 'n'"):
        run("accept", "--instance=a", "--member=n")
    assert "2 records retained, next is 46" in run("accept", "--instance=a", "--member=m")
    for row in (instance, own, other):
        row.refresh_from_db()
    assert (instance.log, instance.frontier, other.frontier) == (before, 2, 99)
    assert known_log("a", "m") is not None and own.log != other.log and own.frontier == 45
    assert "next is 46" in run("accept", "--instance=a")  # without --member: the member on this machine
    instance.refresh_from_db()
    assert instance.frontier == 2


def test_repair(place: list[str]) -> None:
    assert run("repair", *place) == "2 records retained, next is 3. The journal needed no repair.\n"
    assert json.loads(run("repair", "--json", *place))["clean"] is True


def test_a_journal_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"The directory .* doesn.t exist"):
        run("ls", f"--directory={tmp_path / 'absent'}")


FORGED = b'{"a": 1,\n"b": "\xc2\x9b2J"}'
TEXT = b'x\n{"bookmark":"a|9|","topic":"forged"}\x1b[2J'


@pytest.fixture
def attacked(tmp_path: Path) -> list[str]:
    """Write a journal with a two-line JSON body and a text body that looks like a dumped record."""
    journal = Journal.open(tmp_path / "journal", "a", tmp_path / "archive")
    batch = Batch.parse(build_single_topic_batch("p", "t", [FORGED, TEXT], 1))
    batch.stamp(origin=journal.origin, epoch=journal.epoch, first_sequence=1, accepted_at=10**18)
    journal.write([batch])
    journal.close()
    return ["--instance=a", f"--directory={tmp_path / 'journal'}", f"--archive={tmp_path / 'archive'}"]


@pytest.mark.parametrize("words", [("dump",), ("grep",)])
def test_bodies_forge_no_records_and_drive_no_terminal(attacked: list[str], words: tuple[str, ...]) -> None:
    text = run(*words, *attacked)
    first, second = (json.loads(line) for line in text.splitlines())
    assert (first["bookmark"], first["data"]) == ("a|1|", {"a": 1, "b": "\x9b2J"})
    assert (second["bookmark"], second["text"]) == ("a|2|", TEXT.decode())
    assert not any(one in text.replace("\n", "") for one in "\x1b\x9b\r")
