"""What the pipeline needs of the machine, and what it says when that isn't there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker_core.errors import OperatorError
from pipeline.__main__ import main
from pipeline.config import settings_from
from pipeline.session import java_version, require_java
from tests.pipeline.support import fill


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ("", 0),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25" 2025', 25),
    ],
)
def test_the_version_is_read_from_what_java_prints(told: str, version: int) -> None:
    assert java_version(told) == version


@pytest.mark.parametrize("environment", [{"PATH": ""}, {"JAVA_HOME": "/nowhere"}])
def test_without_java_the_sentence_says_what_to_install(environment: dict[str, str]) -> None:
    with pytest.raises(OperatorError) as caught:
        require_java(environment)
    assert caught.value.code == "java_missing"
    assert "apt install openjdk-17-jre-headless" in caught.value.fix


def test_an_old_java_is_refused(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(OperatorError, match="is Java 11"):
        require_java({"JAVA_HOME": str(tmp_path)})


def test_a_job_without_java_ends_with_the_sentence_and_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, [3])
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert main(["lake", "--home", str(tmp_path)]) == 1
    assert "openjdk-17-jre-headless" in capsys.readouterr().err


def test_an_unknown_job_is_a_wrong_call() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "lake" in done.stderr


def test_arguments_win_over_the_environment(tmp_path: Path) -> None:
    environment = {"SLUICE_HOME": str(tmp_path), "SLUICE_INSTANCE": "two", "SPARK_MASTER": "local[1]"}
    settings = settings_from(environment, instance="three")
    assert (settings.log.instance, settings.master) == ("three", "local[1]")
    assert settings.log.directory == tmp_path / "journal"


def test_a_bad_instance_name_is_refused() -> None:
    with pytest.raises(OperatorError, match="bad_setting"):
        settings_from({"SLUICE_INSTANCE": "no way"})
