"""Options of jobs: bounds from one place, and empty ranges refused before any output is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker_core.documents.jobs import JOB_OPTIONS, JobOption
from broker_core.errors import OperatorError
from pipeline.__main__ import main
from tests.pipeline.support import fill

NUMBERS = [
    (job, option)
    for job, options in JOB_OPTIONS.items()
    for option in options
    if option.kind in ("whole", "number")
]


@pytest.mark.parametrize(("job", "option"), NUMBERS, ids=[f"{job} {option.name}" for job, option in NUMBERS])
def test_a_number_out_of_bounds_is_refused_by_its_name(
    job: str, option: JobOption, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("nan", "inf", "-inf", "-5", "1_0", "٣", "", str(option.least - 1), str(option.most + 1)):
        with pytest.raises(SystemExit) as caught:
            main([job, f"--{option.name}={text}"])
        assert caught.value.code == 2
        assert f"argument --{option.name}" in capsys.readouterr().err
    for edge in (option.least, option.most):
        assert option.read(str(edge)) == edge


def test_a_refusal_reaches_the_process_that_started_the_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["capacity", "--json", "--host-memory", "-5"]
    monkeypatch.setattr("sys.argv", ["pipeline", *words])
    with pytest.raises(SystemExit):
        main(words)
    told = json.loads(capsys.readouterr().out)
    assert (told["event"], told["code"]) == ("error", "bad_option")
    assert "host-memory is '-5'. Give a whole number, 1,048,576 to" in told["message"]


@pytest.mark.parametrize(
    "words",
    [
        "capacity --start=2030-01-01",
        "capacity --end=2001-01-01",
        "capacity --start=2026-11-21T12:00:01.2Z --end=2026-11-21T12:00:01.7Z",
        "capacity --start=2026-11-22 --end=2026-11-21",
        "state --at=2001-01-01",
        "state --at=3 --since=4",
        "lake --start=9 --end=8",
        "audit --start=99",
        "lake-check --end=99",
        "capacity --start=1 --end=99",
    ],
)
def test_a_range_that_holds_nothing_is_an_error_and_nothing_is_made(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, [5, 5])
    before = sorted(tmp_path.rglob("*"))
    assert main([*words.split(), f"--home={tmp_path}"]) == 1
    assert capsys.readouterr().err.startswith("bad_range: ")
    assert sorted(tmp_path.rglob("*")) == before


def test_texts_are_bounded_and_flags_say_yes_or_no() -> None:
    (topics,) = [one for one in JOB_OPTIONS["state"] if one.name == "topics"]
    (strict,) = [one for one in JOB_OPTIONS["audit"] if one.name == "strict"]
    assert (topics.read("a.>"), strict.read("Yes"), strict.read("0")) == ("a.>", True, False)
    for option, text in ((topics, "x" * 1_001), (topics, "a\0b"), (strict, "maybe")):
        with pytest.raises(OperatorError, match=f"{option.name} is "):
            option.read(text)
