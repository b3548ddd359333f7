"""docs/journals.md: its commands run, its settings are read, and the files it names exist."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from django.core.management import call_command

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.config import PolicyDocument, default_policy
from broker_core.journal.journal import Journal
from console.forms.journaled_topics import read_line

PAGE = (Path(__file__).parents[3] / "docs" / "journals.md").read_text()
COMMANDS = re.findall(r"^manage\.py journal (.*?)(?:\s{2,}#.*)?$", PAGE, re.M)


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    journal = Journal.open(tmp_path / "journal", "sluice-1", tmp_path / "archive")
    batch = Batch.parse(
        build_single_topic_batch("loader-3", "orders.a", [b'{"price": 200}', b'{"price": 2}'], 1)
    )
    batch.stamp(origin=journal.origin, epoch=journal.epoch, first_sequence=1, accepted_at=10**18)
    journal.write([batch])
    journal.close()
    return ["--instance=sluice-1", f"--directory={tmp_path / 'journal'}", f"--archive={tmp_path / 'archive'}"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_run(command: str, place: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    call_command("journal", *shlex.split(command), *place)
    if "fix" not in command and "2h" not in command:
        assert capsys.readouterr().out


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 10


def test_the_entries_are_those_of_a_policy_and_of_the_form() -> None:
    entries = json.loads(PAGE.split("```json\n")[1].split("```")[0])
    document = default_policy("one").to_dict()
    document["instance"]["journaled_topics"] = entries
    assert PolicyDocument.from_dict(document).to_dict()["instance"]["journaled_topics"] == entries
    lines = [
        line.strip()
        for line in PAGE.split("write one entry per line:\n")[1].split("\n*")[0].splitlines()
        if line.strip()
    ]
    assert [read_line(line) for line in lines] == entries
