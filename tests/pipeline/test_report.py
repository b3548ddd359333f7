"""The report: one self-contained file, stored with its run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
from django.test import Client
from django.urls import reverse

from console.models import Instance
from pipeline.jobs import report
from pipeline.jobs.client_history import write_hours
from pipeline.plots import PlotSpec
from pipeline.run_record import RecordingReporter
from pipeline.schemas import CLIENT_HOURS
from tests.pipeline.support import INSTANCE, FakeReporter, settings_in

HOUR_US = 3_600_000_000
NOW = 1_795_262_400_000_000


def test_a_week_is_one_file_without_scripts_that_the_run_s_page_hands_out(
    tmp_path: Path, operator: Any, instance: Instance, settings: Any
) -> None:
    place = settings_in(tmp_path)
    rows = [
        {
            "client": name,
            "transport": "tcp",
            "hour": NOW - number * HOUR_US,
            "samples": 1,
            "delivered_messages": 100 * number,
            "offline_ms": 3_600_000 if name == "<b>slow" else 0,
            "disconnected": int(number == 3),
            "connected_ms": 3_600_000,
        }
        for number in range(200)
        for name in ("<b>slow", "quick")
    ]
    write_hours(place.client_history, INSTANCE, pa.Table.from_pylist(rows, schema=CLIENT_HOURS), None)
    other = RecordingReporter(FakeReporter(), "capacity", argparse.Namespace())
    other.table(
        "growth",
        pa.table({"hour": [1, 2], "bytes": [3, 4]}),
        "Growth",
        [PlotSpec("Bytes by hour", "hour", ("bytes",))],
    )
    other.table(
        "advice", pa.table({"setting": ["journal retention"], "why": ["a < b"]}), "Recommended settings"
    )
    assert other.store_run(place, {})
    made = RecordingReporter(FakeReporter(), "report", argparse.Namespace(days=7))
    result = report.run(place, argparse.Namespace(days=7), made)
    assert (result["clients"], result["clients_disconnected"], result["offline_hours"], result["parts"]) == (
        2,
        2,
        168,
        2,
    )
    assert made.store_run(place, result)
    settings.SLUICE_LAKE_DIRECTORY = place.lake
    browser = Client()
    browser.force_login(operator)
    told = browser.get(reverse("pipeline_run", args=[made.id])).content.decode()
    address = reverse("pipeline_page", args=[made.id])
    assert address in told
    answer = browser.get(address)
    assert answer["Content-Disposition"] == f'attachment; filename="{made.id}.html"'
    page = answer.content.decode()
    for word in ("&lt;b&gt;slow", "journal retention", "a &lt; b", "Bytes by hour", "<svg "):
        assert word in page
    # Each plot is included twice: for a wide page and for a phone.
    assert page.count('viewBox="0 0 380 ') == page.count('viewBox="0 0 760 ') == 4
    for word in ("<script", "<b>slow", " src=", " href=", "url("):
        assert word not in page
    for svg in page.split("<svg ")[1:]:
        ElementTree.fromstring("<svg " + svg.split("</svg>")[0] + "</svg>")
    assert browser.get(reverse("pipeline_page", args=[other.id])).status_code == 404
