"""Requirements of the pipeline on the machine, and the errors when they are missing."""

from __future__ import annotations

import shlex
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker_core.errors import OperatorError
from pipeline.__main__ import main
from pipeline.class_archive import class_archive
from pipeline.config import settings_from
from pipeline.spark_session import authentication_settings, java_version, require_java
from tests.pipeline.support import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RPC_REQUEST = 3
"""Type of a request in a frame of Spark's network protocol."""


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


@pytest.mark.parametrize(
    ("master", "authenticates", "has_secret"),
    [
        ("local[*]", True, False),
        ("yarn", True, False),
        ("k8s://https://host:6443", True, False),
        ("local-cluster[2,1,1024]", True, True),
        ("spark://host:7077", False, False),
    ],
)
def test_processes_of_spark_authenticate_unless_the_cluster_decides(
    master: str, authenticates: bool, has_secret: bool
) -> None:
    made = authentication_settings(master)
    assert made.get("spark.authenticate") == ("true" if authenticates else None)
    assert ("spark.authenticate.secret" in made) is has_secret


def test_the_driver_refuses_a_peer_that_does_not_authenticate(spark: SparkSession) -> None:
    """Any process of the machine can reach the driver's port on loopback."""
    port = int(spark.sparkContext.getConf().get("spark.driver.port", "0"))
    body = b"not a secret"
    request = struct.pack(">bqi", RPC_REQUEST, 7, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), 30) as peer:
        peer.settimeout(60)
        peer.sendall(struct.pack(">q", 8 + len(request)) + request)
        answer = b""
        while chunk := peer.recv(65_536):
            answer += chunk
            if b"Sasl" in answer:
                break
    assert b"Sasl" in answer  # the reason: no handshake


def test_an_unknown_job_is_a_wrong_call() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "lake" in done.stderr


WRONG = {
    "home": (["--home", "{home}-not"], "bad_setting: The data directory"),
    "journal": (["--journal", "{home}/jurnal"], "no_journal: There is no journal directory"),
    "archive": (["--archive", "{home}/arhcive"], "no_journal: There is no archive directory"),
    "instance": (["--instance", "sluice-2"], "no_journal: There is no journal of sluice-2"),
    "bad name": (["--instance", "a b"], "bad_setting: 'a b' can't be"),
    "backwards": (["--start", "3", "--end", "2"], "bad_range: The range ends before it begins"),
    "behind the end": (["--start", "4"], "bad_range: Record 4 doesn't exist"),
    "end ahead": (["--end", "9"], "bad_range: Record 9 doesn't exist"),
    "no master": (["--master", "lokal[2]"], "bad_setting: 'lokal[2]' isn't a Spark master"),
    "nobody there": (["--master", "spark://127.0.0.1:1"], "master_unreachable: Spark can't be started"),
    "unwritable": (["--lake", "{home}/file/lake"], "lake_unwritable: "),
}


STARTS_SPARK = ("no master", "nobody there", "unwritable")
CASES = [("lake", name) for name in WRONG] + [
    ("lake-check", name) for name in WRONG if name not in STARTS_SPARK
]


@pytest.mark.parametrize(("job", "name"), CASES)
def test_what_is_missing_or_misspelt_is_one_sentence_and_nothing_is_made(
    job: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    fill(home, [3])
    (home / "file").touch()
    given, sentence = WRONG[name]
    before = sorted(home.rglob("*"))
    told = [job, "--home", str(home), *(word.format(home=home) for word in given)]
    assert main(told) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(sentence), line
    assert sorted(home.rglob("*")) == before
    assert sorted(tmp_path.iterdir()) == [home]


def test_arguments_win_over_the_environment(tmp_path: Path) -> None:
    environment = {"SLUICE_HOME": str(tmp_path), "SLUICE_INSTANCE": "two", "SPARK_MASTER": "local[1]"}
    settings = settings_from(environment, instance="three")
    assert (settings.log.instance, settings.master) == ("three", "local[1]")
    assert settings.log.directory == tmp_path / "journal"


def test_a_bad_instance_name_is_refused() -> None:
    with pytest.raises(OperatorError, match="bad_setting"):
        settings_from({"SLUICE_INSTANCE": "no way"})


def test_a_jvm_that_cannot_start_is_not_a_master_that_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java itself is found and answers; with this much memory it does not start."""
    fill(tmp_path, [3])
    monkeypatch.setenv("SPARK_DRIVER_MEMORY", "99999g")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ["-m", "pipeline", "lake", "--home", str(tmp_path), "--master", "local[1]"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "spark_not_started: Spark can't be started on this machine"
    )
    assert not list((tmp_path / "cache").rglob("classes-*"))


def test_jobs_of_ones_own_are_those_of_the_home_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--home may be at any place on the command line; a jobs directory in the settings takes precedence."""
    monkeypatch.delenv("SLUICE_JOBS_DIRECTORY", raising=False)
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "other"))
    (tmp_path / "jobs").mkdir()
    job = (
        "HELP = 'mine'\ndef add_arguments(parser): pass\n"
        "def run(settings, arguments, reporter): return {'in': str(settings.lake)}\n"
    )
    (tmp_path / "jobs" / "of_this_home.py").write_text(job)
    for words in (["of-this-home", f"--home={tmp_path}"], ["--home", str(tmp_path), "of-this-home"]):
        assert main(words) == 0
        assert f"in {tmp_path / 'lake'}" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["of-this-home"])
    monkeypatch.setenv("SLUICE_JOBS_DIRECTORY", str(tmp_path / "elsewhere"))
    with pytest.raises(SystemExit):
        main(["of-this-home", "--home", str(tmp_path)])


def test_classes_are_kept_by_one_job_for_the_next(tmp_path: Path) -> None:
    """The job that makes the archive locks it; a failed or damaged archive is made by the next job.

    The home has a blank in its name.
    """
    tmp_path = tmp_path / "a b"
    tmp_path.mkdir()
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    java = require_java()
    with class_archive(java, environment) as first, class_archive(java, environment) as meanwhile:
        assert first.is_pending
        assert (meanwhile.is_pending, meanwhile.options) == (False, "")
    with class_archive(java, environment) as second:
        made = Path(shlex.split(second.options)[0].partition("ArchiveClassesAtExit=")[2])
        made.write_bytes(b"classes")
        second.store()
    with class_archive(java, environment) as third:
        (kept,) = tmp_path.glob("sluice/*.jsa")
        assert f"-XX:SharedArchiveFile={kept}" in shlex.split(third.options)
        assert not third.is_pending
    kept.write_bytes(b"clasps!")  # damage by a disk fault, a full disk or a power loss
    with class_archive(java, environment) as anew:
        assert anew.is_pending
        assert not kept.exists()
    assert not list(tmp_path.glob("sluice/classes-*")), "a failed archive leaves no files"
    blocked = tmp_path / "file"
    blocked.touch()
    with class_archive(java, {"XDG_CACHE_HOME": str(blocked)}) as none:
        assert none.options == ""


@pytest.mark.parametrize("name", ["XDG_CACHE_HOME", "HOME"])
@pytest.mark.parametrize("place", [None, "relative", "{0}/a:b", "{0}/it's", '{0}/"', "{0}/back\\slash"])
def test_without_a_usable_cache_directory_no_class_archive_is_made(
    name: str, place: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also no file is created, neither in the working directory nor at the file system's root."""
    monkeypatch.chdir(tmp_path)
    environment = {} if place is None else {name: place.format(tmp_path)}
    with class_archive(require_java(), environment) as archive:
        assert (archive.options, archive.is_pending) == ("", False)
    assert list(tmp_path.iterdir()) == []
    assert not Path("/nowhere").exists()
