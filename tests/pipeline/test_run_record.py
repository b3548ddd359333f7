"""A run started in each way, and the record that it leaves; custom jobs of an operator."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.pipeline.support import INSTANCE, fill

pytestmark = pytest.mark.slow
PROJECT = Path(__file__).parents[2]
TEMPLATE = PROJECT / "pipeline" / "jobs" / "template.py"
QUICK = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}


def run(home: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {**os.environ, **QUICK, "SLUICE_HOME": str(home), "SLUICE_INSTANCE": INSTANCE, **environment}
    return subprocess.run(
        list(words), env=known, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=300
    )


def records(home: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted((home / "lake" / "runs").glob("*/run.json"))]


def own_job(home: Path) -> Path:
    (home / "jobs").mkdir()
    (home / "lake").mkdir()
    return Path(shutil.copy(TEMPLATE, home / "jobs" / "messages_by_minute.py"))


def test_a_job_of_ones_own_is_found_runs_and_is_recorded_with_its_table_and_plot(tmp_path: Path) -> None:
    """The documented example: the template, copied."""
    last = fill(tmp_path, [50] * 90)
    own_job(tmp_path)
    (tmp_path / "jobs" / "broken.py").write_text("import nothing_of_that_name\n")
    listed = run(tmp_path, sys.executable, "manage.py", "pipeline", "ls")
    assert "messages-by-minute" in listed.stdout
    assert "count the messages of each topic in each minute" in " ".join(listed.stdout.split())
    done = run(
        tmp_path,
        sys.executable,
        "manage.py",
        "pipeline",
        "run",
        "messages-by-minute",
        "--master=local[2]",
        "--topics=t.1,t.2",
        SLUICE_ACTOR="maria",
    )
    assert done.returncode == 0, done.stderr
    (kept,) = records(tmp_path)
    assert (kept["job"], kept["state"], kept["by"], kept["master"]) == (
        "messages-by-minute",
        "succeeded",
        "maria",
        "local[2]",
    )
    assert kept["parameters"] == {"topics": "t.1,t.2"}
    assert kept["cpu_s"] > 1
    folder = tmp_path / "lake" / "runs" / kept["id"]
    table = pq.read_table(folder / "messages.parquet")
    assert kept["result"]["minutes"] == table.num_rows
    assert sum(table.column("messages").to_pylist()) == sum(n % 3 != 0 for n in range(1, last + 1))
    assert "<svg" in (folder / "messages.0.svg").read_text()
    broken = run(tmp_path, sys.executable, "-m", "pipeline", "broken")
    assert broken.returncode == 1
    assert "bad_job" in broken.stderr
    assert "nothing_of_that_name" in broken.stderr


def test_spark_submit_runs_a_job_on_its_own_master_and_it_is_recorded(tmp_path: Path) -> None:
    last = fill(tmp_path, [50] * 4)
    (tmp_path / "lake").mkdir()
    activate = f". {sys.prefix}/bin/activate"
    assert ". .venv/bin/activate\nspark-submit --master" in (PROJECT / "docs" / "pipeline.md").read_text(
        "utf-8"
    )
    command = f"{activate}; cd {PROJECT}; spark-submit --master 'local[1]' pipeline/__main__.py audit --json"
    done = run(tmp_path, "env", "-u", "PYTHONPATH", "-u", "SPARK_HOME", "bash", "-c", command)
    assert done.returncode == 0, done.stderr
    (kept,) = records(tmp_path)
    assert (kept["job"], kept["master"], kept["result"]["records"]) == ("audit", "", last)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["run"] == kept["id"]


def test_a_run_that_fails_is_recorded_where_there_is_a_lake_and_makes_none(tmp_path: Path) -> None:
    fill(tmp_path, [5])
    words = (sys.executable, "-m", "pipeline", "lake-check", "--json", "--start=77")
    assert run(tmp_path, *words).returncode == 1
    assert not (tmp_path / "lake").exists()
    (tmp_path / "lake").mkdir()
    assert run(tmp_path, *words).returncode == 1
    (kept,) = records(tmp_path)
    assert (kept["state"], kept["error"]["code"], kept["parameters"]) == (
        "failed",
        "bad_range",
        {"start": 77},
    )
