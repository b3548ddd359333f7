"""`messages-by-minute`: messages on each topic in each minute. A template for custom jobs.

Copy it into the directory of custom jobs (SLUICE_JOBS_DIRECTORY, or `jobs` in the home) as
`messages_by_minute.py`, and change it. The name of the file is the name of the job. `manage.py pipeline
ls`, the console and actions list it immediately.
"""

from __future__ import annotations

import argparse
from typing import Any

from pipeline.config import JobSettings
from pipeline.jobs import Reporter
from pipeline.plots import PlotSpec
from pipeline.spark_session import spark_session
from sluice_spark import journal

HELP = "how many messages came on each topic in each minute"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the job's own options. Every job also has --home, --instance and other common ones."""
    parser.add_argument("--topics", default="", help="patterns, with commas between (default: all)")


def run(settings: JobSettings, arguments: argparse.Namespace, reporter: Reporter) -> dict[str, Any]:
    """Run the job. Tables go to the reporter; the console shows the returned values as the run's result."""
    from pyspark.sql import functions as F

    place = settings.log
    with spark_session(settings, "messages-by-minute", heavy=True) as spark:
        records = journal(
            spark,
            place.directory,
            archive=place.archive,
            instance=place.instance,
            columns=("topic", "accepted_at"),
            topics=arguments.topics,
        )
        minute = F.date_trunc("minute", "accepted_at").alias("minute")
        counted = records.groupBy("topic", minute).agg(F.count("*").alias("messages"))
        table = counted.orderBy("minute", "topic").toArrow()
    plot = PlotSpec("Messages a minute", x="minute", y=("messages",), by="topic")
    reporter.table("messages", table, "Messages by topic and minute", [plot])
    return {"minutes": table.num_rows}
