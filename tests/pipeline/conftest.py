"""Spark session that all pipeline tests of a pytest worker share, since a JVM takes seconds to start."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start a Spark session with settings for a quick start."""
    from pipeline.spark_session import start_session

    quick = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "2",
    }
    session = start_session("local[2]", "tests", tmp_path_factory.mktemp("spark"), quick)
    yield session
    session.stop()


@pytest.fixture
def lent(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Make jobs that run in this process use the shared session."""
    from pipeline.jobs import JOBS

    @contextmanager
    def lend(given: object, *_: object) -> Iterator[object]:
        yield given

    for name in JOBS.values():
        for door, given in (("spark_session", spark), ("spark_context", spark.sparkContext)):
            monkeypatch.setattr(importlib.import_module(name), door, partial(lend, given), raising=False)
    return spark
