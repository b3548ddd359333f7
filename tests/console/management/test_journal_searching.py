"""`manage.py journal grep | find | stat`: arguments and output."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from broker_core.batch import Batch, build_batch
from broker_core.journal.journal import Journal
from broker_core.journal.segment import HEADER_SIZE
from console.models import Instance
from console.services import policies
from console.services.actors import Actor

ROOT = Path(__file__).parents[3]
HOUR = 3_600 * 10**9


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    """Write a journal of ten records, one per hour, on two topics by three publishers."""
    journal = Journal.open(tmp_path / "journal", "a", tmp_path / "archive")
    for number in range(1, 11):
        body = b'{"n": %d}' % number if number % 2 else b"35=D\x0138=%d\x01" % number
        batch = Batch.parse(
            build_batch(
                f"p{number % 3}", ["json" if number % 2 else "fix"], [body], first_publisher_sequence=number
            )
        )
        batch.stamp(
            origin=journal.origin, epoch=1, first_sequence=number, accepted_at=400_000 * HOUR + number * HOUR
        )
        journal.write([batch])
    journal.close()
    return ["--instance=a", f"--directory={tmp_path / 'journal'}", f"--archive={tmp_path / 'archive'}"]


def run(*words: str) -> str:
    out = io.StringIO()
    call_command("journal", *words, stdout=out)
    return out.getvalue()


def found(*words: str) -> list[int]:
    return [int(json.loads(line)["bookmark"].split("|")[1]) for line in run("grep", *words).splitlines()]


def test_grep(place: list[str]) -> None:
    assert found(*place) == list(range(1, 11))
    assert found(*place, "--limit", "3") == [1, 2, 3]
    assert found(*place, "--topic", "json", "--filter", "/n > 4") == [5, 7, 9]
    assert found(*place, "--message-type", "fix", "--filter", "/38 > 4") == [6, 8, 10]
    assert found(*place, "--publisher", "p0") == [3, 6, 9]
    assert found(*place, "--from", "a|3|", "--to", "5") == [3, 4, 5]
    assert found(*place, "--since", "20150819T200000Z", "--until", "20150819T220000Z") == [4, 5]
    line = json.loads(run("grep", *place, "--limit", "1"))
    assert line["segment"] == "a.00000000000000000001.journal"
    assert line["data"] == {"n": 1}


@pytest.mark.parametrize(
    "words",
    [
        ("--limit", "0"),
        ("--since", "yesterday"),
        ("--from", "x|"),
        ("--message-type", "xml"),
        ("--since", "0"),
    ],
)
def test_what_grep_does_not_understand(place: list[str], words: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        run("grep", *place, *words)
    with pytest.raises(CommandError, match="column"):
        run("grep", *place, "--filter", "/n >")


def test_grep_over_damage_finds_the_rest_and_ends_with_an_error(place: list[str], tmp_path: Path) -> None:
    with (tmp_path / "journal" / "a.00000000000000000001.journal").open("r+b") as file:
        file.seek(HEADER_SIZE + 120)
        file.write(b"\xff")
    out = io.StringIO()
    with pytest.raises(CommandError, match=f"damaged at byte {HEADER_SIZE}") as caught:
        call_command("journal", "grep", *place, stdout=out)
    assert caught.value.returncode == 1
    assert len(out.getvalue().splitlines()) == 9


def test_find(place: list[str]) -> None:
    answer = json.loads(run("find", "a|4|", *place))
    assert (answer["segment"], answer["row"], answer["topic"]) == ("a.00000000000000000001.journal", 0, "fix")
    assert json.loads(run("find", "20150819T190000Z", *place))["bookmark"] == "a|3|"
    with pytest.raises(CommandError, match="ahead"):
        run("find", "a|99|", *place)


def test_stat(place: list[str]) -> None:
    text = run("stat", *place)
    assert [line.split()[0] for line in text.splitlines() if line][:4] == ["topic", "fix", "json", "2"]
    rows = [
        json.loads(line) for line in run("stat", *place, "--by", "topic,publisher", "--json").splitlines()
    ]
    assert sum(row["records"] for row in rows) == 10
    assert {(row["topic"], row["publisher"]) for row in rows} == {
        (t, f"p{n}") for t in ("fix", "json") for n in range(3)
    }
    assert "2015-08-19T17:00Z" in text
    assert "8 not shown" in run("stat", *place, "--by", "hour", "--top", "2")
    with pytest.raises(CommandError):
        run("stat", *place, "--by", "colour")


@pytest.mark.parametrize("command", ["grep", "find", "stat"])
def test_help_teaches_by_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(command, "--help")
    text = capsys.readouterr().out
    assert text.count(f"journal {command} ") >= 2


def test_the_policy_says_where_the_log_is(place: list[str], instance: Instance, tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j", instance.name, tmp_path / "k")
    journal.close()
    with pytest.raises(CommandError, match=r"The directory .* doesn.t exist"):
        run("ls", "--instance", instance.name, "--directory", str(tmp_path / "none"))
    Instance.objects.filter(pk=instance.pk).update(journal_directory=str(tmp_path / "j"))
    assert "0 segments" in run("ls", "--instance", instance.name)


def test_bodies_are_read_as_the_policy_of_the_log_says(
    instance: Instance, actor: Actor, tmp_path: Path
) -> None:
    journal = Journal.open(tmp_path / "j", instance.name, tmp_path / "k")
    bodies = [b"Symbol=IBM|Price=1|", b"Symbol=MSFT|Price=2|", b'{"Symbol":"IBM","Price":"3"}']
    batch = Batch.parse(build_batch("p", ["legacy.a", "legacy.b", "orders"], bodies))
    batch.stamp(origin=journal.origin, epoch=1, first_sequence=1, accepted_at=HOUR)
    journal.write([batch])
    journal.close()
    policies.change_instance_policy(
        actor,
        {
            "instance": {
                "journaled_topics": [
                    {"topic": "legacy.>", "message_type": "nvfix", "separator": "|"},
                    ">",
                ]
            }
        },
    )
    Instance.objects.filter(pk=instance.pk).update(journal_directory=str(tmp_path / "j"))
    by_policy, copy = (
        ["--instance", instance.name],
        ["--instance", instance.name, "--directory", str(tmp_path / "j")],
    )
    wanted = ["--filter", "/Symbol = 'IBM'"]
    assert found(*by_policy, *wanted) == [1, 3]
    assert found(*copy, *wanted) == [3]
    assert found(*copy, *wanted, "--message-type", "nvfix", "--separator", "|") == [1]
    assert found(*by_policy, *wanted, "--message-type", "json") == [3]


def test_a_reader_that_has_enough_is_no_error(place: list[str]) -> None:
    """grep exits with 0 when its output pipe is closed, as with `| head -1`."""
    words = [sys.executable, "manage.py", "journal", "grep", *place]
    process = subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()
