"""`report`: a week on one self-contained HTML page, to store, send and print.

It uses results of other jobs: the hourly history of `client-history`, and the newest runs of `capacity`,
`anomalies` and `audit` in that time. Needs neither Spark nor Java. Plots are embedded as SVG; the page has
no script and fetches nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker_core.errors import OperatorError
from pipeline.config import JobSettings
from pipeline.html_page import HtmlPage
from pipeline.jobs import Reporter, add_options
from pipeline.jobs.anomalies import load_hours
from pipeline.plots import PlotSpec
from pipeline.run_record import FOLDER, StoredRun, narrow_plot_name

HELP = "write a report of some days as one HTML file: clients, decisions, capacity, anomalies, audit"
DAY_US: Final = 86_400_000_000
MAX_ROWS_SHOWN: Final = 15
JOB_SECTIONS: Final = (
    ("anomalies", "Clients with unusual behaviour", ("odd", "scores")),
    (
        "capacity",
        "Capacity limits and recommended settings",
        ("advice", "disks", "pools", "use", "topics", "growth"),
    ),
    ("audit", "Completeness of the log", ("damage", "findings")),
)
"""Jobs whose newest run is included, with the title and the tables to show."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the days."""
    add_options(parser, "report")


def run(settings: JobSettings, arguments: argparse.Namespace, reporter: Reporter) -> dict[str, Any]:
    """Write the report. Raises OperatorError no_history without hourly history, bad_range."""
    started_at = time.monotonic()
    if not 0 < arguments.days <= 92:
        raise OperatorError("bad_range", "A report covers 1 to 92 days.", "Give --days.")
    hours = load_hours(settings, arguments.days + 1)
    micros = hours.column("hour").cast(pa.int64())
    end = pc.max(micros).as_py() + 3_600_000_000
    start = end - arguments.days * DAY_US
    hours = hours.filter(pc.greater_equal(micros, start))
    page = HtmlPage(f"Sluice: {settings.log.instance}", f"{_format_day(start)} to {_format_day(end)} UTC")
    facts = _page_facts(hours)
    page.add_facts(facts)
    _add_clients(page, hours, reporter)
    included = list(_add_runs(page, settings, start))
    reporter.page(page.to_html())
    missing = [job for job, *_ in JOB_SECTIONS if job not in included]
    if missing:
        reporter.note(f"These days have no run of {', '.join(missing)}. Run these jobs before the report.")
    return {
        **facts,
        "days": arguments.days,
        "parts": 1 + len(included),
        "seconds": round(time.monotonic() - started_at, 3),
    }


def _format_day(micros: int) -> str:
    return f"{datetime.fromtimestamp(micros / 1e6, UTC):%Y-%m-%d %H:%M}"


def _page_facts(hours: pa.Table) -> dict[str, int]:
    def total(name: str) -> int:
        return int(pc.sum(hours.column(name)).as_py() or 0)

    return {
        "clients": pc.count_distinct(hours.column("client")).as_py(),
        "messages_handed_over": total("delivered_messages"),
        "offline_episodes": total("offline_episodes"),
        "offline_hours": round(total("offline_ms") / 3_600_000),
        "clients_disconnected": total("disconnected"),
        "messages_lost": total("lost_messages"),
    }


def _add_clients(page: HtmlPage, hours: pa.Table, reporter: Reporter) -> None:
    """Add the clients by hour and transport, and those with the most offlined time."""
    sums = ("delivered_messages", "offline_ms", "warned", "offlined", "disconnected", "lost_messages")
    by_hour = _sum_by_client(hours, ["hour", "transport"], sums).sort_by(
        [("hour", "ascending"), ("transport", "ascending")]
    )
    decided = _sum_by_client(hours, ["hour"], sums).sort_by("hour")
    worst = _sum_by_client(hours, ["client"], sums, ("lag_ms_max", "lag_messages_max"))
    worst = worst.sort_by(
        [("offline_ms", "descending"), ("lag_ms_max", "descending"), ("client", "ascending")]
    )
    page.add_section("Clients")
    for plot, table in (
        (PlotSpec("Delivered messages by hour", "hour", ("delivered_messages",), by="transport"), by_hour),
        (PlotSpec("Decisions by hour", "hour", ("warned", "offlined", "disconnected")), decided),
        (
            PlotSpec(
                "Time offlined by hour, all clients", "hour", ("offline_ms",), by="transport", unit="ms"
            ),
            by_hour,
        ),
    ):
        page.add_plot(plot, table)
    page.add_table("Clients with the most problems", worst, MAX_ROWS_SHOWN)
    reporter.table(
        "hours",
        by_hour,
        "By transport and hour",
        [PlotSpec("Delivered messages by hour", "hour", ("delivered_messages",), by="transport")],
    )
    reporter.table("clients", worst, "Clients")


def _sum_by_client(
    hours: pa.Table, keys: list[str], sums: tuple[str, ...], peaks: tuple[str, ...] = ()
) -> pa.Table:
    made = hours.group_by(keys).aggregate(
        [*((name, "sum") for name in sums), *((name, "max") for name in peaks)]
    )
    return made.select(
        [*keys, *(f"{name}_sum" for name in sums), *(f"{name}_max" for name in peaks)]
    ).rename_columns([*keys, *sums, *peaks])


def _add_runs(page: HtmlPage, settings: JobSettings, start: int) -> Iterator[str]:
    """Add the newest run of each job since `start`; yield the jobs that had one."""
    shelf = settings.lake / FOLDER
    for job, title, table_names in JOB_SECTIONS:
        run = _newest_run(shelf, job, settings.log.instance, start)
        if run is None:
            continue
        page.add_section(title, f"{job}, {_format_day(run.ended_at * 1_000)}")
        for line in run.lines[-3:]:
            page.add_paragraphs(line)
        for one in run.tables:
            if one.name not in table_names:
                continue
            folder = shelf / run.id
            for drawn in one.plots:
                page.add_drawn_plot(
                    *((folder / name).read_text("utf-8") for name in (drawn, narrow_plot_name(drawn)))
                )
            if not one.plots:
                page.add_table(
                    one.title, pq.ParquetFile(folder / f"{one.name}.parquet").read(), MAX_ROWS_SHOWN
                )
        yield job


def _newest_run(shelf: Path, job: str, instance: str, start: int) -> StoredRun | None:
    names = sorted(shelf.glob(f"*-{job}-*/run.json"), reverse=True) if shelf.is_dir() else []
    for path in names:
        try:
            run = msgspec.json.decode(path.read_bytes(), type=StoredRun)
        except (OSError, msgspec.DecodeError):
            continue  # removed meanwhile, or damaged
        if run.ended_at * 1_000 < start:
            break
        if (run.job, run.instance, run.state) == (job, instance, "succeeded"):
            return run
    return None
