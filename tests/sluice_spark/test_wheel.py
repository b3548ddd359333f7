"""The wheel in an environment with PySpark and its requirements, and nothing of Sluice."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.support import fill, journal_location, move

pytestmark = pytest.mark.slow
BASE = Path(__file__).resolve().parents[2]
SPARKS_OWN = (
    "pyspark",
    "py4j",
    "numpy",
    "numpy.libs",
    "pyarrow",
    "pyarrow.libs",
    "pandas",
    "pandas.libs",
    "dateutil",
    "pytz",
    "six.py",
    "tzdata",
)
JOB = """
import json, sys
from pyspark.sql import SparkSession
path, master = sys.argv[1:]
session = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
session = session.config("spark.executor.memory", "1g").config("spark.driver.host", "127.0.0.1")
spark = session.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
if master != "local[2]":
    import sluice_spark  # with --py-files Spark doesn't look for sources by itself
frame = spark.read.format("sluice").option("path", path).option("filter", "/n > 10").load()
lacking = spark.range(0, 8, 1, 8).rdd.map(
    lambda _: __import__("importlib.util").util.find_spec("fastcrc") is None
)
spark.sql(f"CREATE TEMPORARY VIEW log USING sluice OPTIONS (path '{path}', topics 't.1')")
print(json.dumps({
    "all": spark.read.format("sluice").load(path).count(),
    "filtered": frame.count(),
    "sum": frame.selectExpr("sum(sequence)").first()[0],
    "view": spark.sql("SELECT count(*) FROM log").first()[0],
    "bare": all(lacking.collect()),
}))
spark.stop()
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with PySpark alone."""
    home = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    (site,) = home.glob("lib/python*/site-packages")
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    ours = Path(found.origin).parents[1]
    for name in SPARKS_OWN:
        if (ours / name).exists():
            (site / name).symlink_to(ours / name)
    return home / "bin" / "python"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the wheel, as `make wheel` builds it."""
    directory = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, str(BASE / "packaging" / "spark_wheel.py"), str(directory)], check=True)
    return directory


def run(python: Path, tmp_path: Path, words: list[str]) -> dict[str, object]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "SPARK", "PYSPARK"))
    }
    environment |= {
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1",
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def expected(last: int) -> dict[str, object]:
    total = last * (last + 1) // 2 - 55
    return {
        "all": last,
        "filtered": last - 10,
        "sum": total,
        "view": len(range(1, last + 1, 3)),
        "bare": True,
    }


def test_installed_into_a_bare_environment_spark_finds_it_by_itself(
    bare: Path, dist: Path, tmp_path: Path
) -> None:
    last = fill(tmp_path / "home", [50] * 40)
    move(tmp_path / "home", "compress", slice(0, 2))
    (wheel,) = dist.glob("*.whl")
    pip = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([str(bare), *pip, str(wheel)], check=True)
    job = tmp_path / "job.py"
    job.write_text(JOB)
    try:
        words = [str(bare), str(job), str(journal_location(tmp_path / "home").directory), "local[2]"]
        assert run(bare, tmp_path, words) == expected(last)
    finally:
        subprocess.run([str(bare), "-m", "pip", "uninstall", "--quiet", "--yes", "sluice-spark"], check=True)


def test_executors_of_a_cluster_need_nothing_but_the_archive(bare: Path, dist: Path, tmp_path: Path) -> None:
    last = fill(tmp_path / "home", [50] * 40)
    move(tmp_path / "home", "compress", slice(0, 2))
    job = tmp_path / "job.py"
    job.write_text(JOB)
    master = "local-cluster[2,1,1024]"
    site = next(bare.parents[1].glob("lib/python*/site-packages"))
    submit = [str(bare), str(site / "pyspark" / "bin" / "spark-submit")]
    words = [*submit[1:], "--master", master, "--py-files", str(dist / "sluice_spark.zip"), str(job)]
    before = set((site / "pyspark").resolve().glob("work/*"))
    try:
        assert run(
            bare, tmp_path, [*words, str(journal_location(tmp_path / "home").directory), master]
        ) == expected(last)
    finally:
        for made in set((site / "pyspark").resolve().glob("work/*")) - before:
            shutil.rmtree(made)
