"""Build the wheel of `sluice-spark` in dist/.

    python packaging/spark_wheel.py [directory]

The wheel has the data source, and the modules of `broker_core` that it reads journals with: those that
Python loads with the data source. The archive is also copied to `sluice_spark.zip`, because Spark's
--py-files only accepts that ending.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BASE = Path(__file__).resolve().parent.parent
VERSION = "0.1.0"
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "sluice-spark"
version = "{version}"
description = "Journals of the Sluice message broker as a Spark data source: \
format(\\"sluice\\"), batch and streaming"
requires-python = ">=3.11"
license = "Apache-2.0"
license-files = ["LICENSE", "NOTICE"]
# Of those that a bare executor lacks there are slower stand-ins; pyspark[sql] brings the other two.
dependencies = ["numpy", "pyarrow", "fastcrc", "isal", "orjson", "msgspec", "google-re2"]

[tool.setuptools]
packages = [{packages}]
py-modules = ["pyspark_sluice"]
"""
ASK = """
import sys
import sluice_spark.source, sluice_spark.stream, pyspark_sluice
wanted = ("broker_core", "sluice_spark", "pyspark_sluice")
print(*(m.__file__ for n, m in sorted(sys.modules.items()) if n.split(".")[0] in wanted), sep="\\n")
"""


def modules() -> list[Path]:
    """Return the files of the wheel, relative to the project."""
    asked = subprocess.run(
        [sys.executable, "-c", ASK], cwd=BASE, capture_output=True, text=True, check=True
    ).stdout
    return [Path(line).resolve().relative_to(BASE) for line in asked.splitlines()]


def build(directory: Path) -> Path:
    """Build the wheel; return its path. Raises CalledProcessError if pip fails."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as stage:
        files = modules()
        for file in files:
            target = Path(stage, file)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(BASE / file, target)
        for name in ("LICENSE", "NOTICE"):
            shutil.copyfile(BASE / name, Path(stage, name))
        packages = sorted({str(file.parent).replace("/", ".") for file in files if str(file.parent) != "."})
        listed = ", ".join(f'"{package}"' for package in packages)
        Path(stage, "pyproject.toml").write_text(PROJECT.format(version=VERSION, packages=listed))
        words = [
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            str(directory),
            stage,
        ]
        subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *words], check=True)
    wheel = directory / f"sluice_spark-{VERSION}-py3-none-any.whl"
    shutil.copyfile(wheel, directory / "sluice_spark.zip")
    return wheel


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else BASE / "dist"))
