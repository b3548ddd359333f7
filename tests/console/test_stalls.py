"""Pages, metrics and an error name the cause of event-loop stalls in a broker."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from broker_core.documents.requests import GetStatus
from broker_core.documents.stalls import CAUSES, StallCause, StallEntry
from broker_core.stored_stalls import stalls_path, write_stalls
from console.broker_link import BrokerLink, BrokerUnavailable
from console.choices import Role
from console.models import Instance
from console.queries import readiness, system_conditions
from tests.support.control_plane import person
from tests.support.fake_broker import FakeBroker


def stall(cause: StallCause = StallCause.LOOP_BLOCKED, *, ago_s: int = 200, over: bool = True) -> StallEntry:
    return StallEntry(
        at=int(time.time() * 1_000) - 1_000 * ago_s,
        lasted_ms=126_000,
        over=over,
        cause=cause,
        doing="command Subscribe of board",
        pid=os.getpid(),
        pressure={"io": 81.5},
        stacks='File "x.py", line 1 in <module>',
    )


@pytest.fixture(autouse=True)
def redis_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = tuple({"name": name, "ok": True, "problem": ""} for name in ("redis", "worker"))
    monkeypatch.setattr(readiness, "_redis", lambda **_: parts)
    monkeypatch.setattr(readiness, "_workers", list)
    monkeypatch.setattr(system_conditions, "_since", {})


def test_a_stall_stands_at_the_top_for_a_while_and_among_incidents_and_metrics(
    broker: FakeBroker, operator: Any, instance: Instance
) -> None:
    browser = Client()
    browser.force_login(operator)
    assert "stood still" not in browser.get("/standing/").content.decode()
    assert "stalls-title" not in browser.get("/decisions/").content.decode()
    broker.stalls = [stall(StallCause.PROCESS_STOPPED, ago_s=90_000), stall()]
    top = browser.get("/standing/").content.decode()
    assert "The broker stalled for 2 min 06 s (loop_blocked)" in top
    assert CAUSES[StallCause.LOOP_BLOCKED].meaning in top and "of board" not in top
    page = browser.get("/decisions/").content.decode()
    assert "2 stalls of the broker" in page and "process_stopped" in page
    assert "command Subscribe of board" in page and "81.5 %" in page
    assert "line 1 in &lt;module&gt;" in page
    answer = Client().get("/readyz")
    assert answer.status_code == 200 and "stall" not in answer.content.decode()
    found = {
        (sample.name, sample.labels["cause"]): sample.value
        for family in text_string_to_metric_families(Client().get("/metrics").content.decode())
        for sample in family.samples
        if sample.name.startswith("sluice_loop_stall") and "cause" in sample.labels
    }
    assert found["sluice_loop_stalls_total", "loop_blocked"] == 1
    assert found["sluice_loop_stall_seconds_total", "process_stopped"] == 126
    assert found["sluice_loop_stalls_total", "cpu_starved"] == 0
    status = browser.get("/api/v1/status").json()
    assert status["stalls"]["count"] == {"process_stopped": 1, "loop_blocked": 1}
    assert "board" not in str(status["stalls"])
    broker.stalls = [stall(ago_s=3_600)]
    assert "stood still" not in browser.get("/standing/").content.decode()


def test_who_may_see_some_clients_alone_is_not_told_what_was_done(
    broker: FakeBroker, instance: Instance
) -> None:
    broker.stalls = [stall()]
    page = Client()
    page.force_login(person("narrow", Role.VIEWER, client_pattern="other-*", instance=instance))
    text = page.get("/decisions/").content.decode()
    assert "1 stall of the broker" in text
    assert "of board" not in text and "line 1 in" not in text


def test_a_broker_that_stands_still_now_is_said_to_and_why(tmp_path: Path, settings: Any) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(path))
        silent.listen()
        link = BrokerLink(path, timeout_s=0.2)
        with pytest.raises(BrokerUnavailable) as away:
            link.call(GetStatus())
        assert "event loop has been" not in away.value.sentence
        write_stalls(stalls_path(path), [stall(StallCause.DISK_WAIT, over=False)])
        with pytest.raises(BrokerUnavailable) as away:
            link.call(GetStatus())
    assert "Its event loop has been blocked since" in away.value.sentence
    assert away.value.sentence.endswith(CAUSES[StallCause.DISK_WAIT].meaning)
    assert away.value.fix == CAUSES[StallCause.DISK_WAIT].fix
