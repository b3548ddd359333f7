"""A stopped broker process reports the pause afterwards, with the cause: in its log, on pages and in
`/metrics`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from console.models import Instance
from tests.api.broker_websocket.test_transport import free_port

pytestmark = [pytest.mark.slow, pytest.mark.django_db]
ROOT = Path(__file__).parents[2]
SLOW_S = 120
"""The machine may be busy."""


def becomes_true_within(seconds: float, holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def broker_answers(control: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(control))
        return True
    except OSError:
        return False


def stalls_counted(cause: str) -> float:
    """Return how many stalls of a cause the metrics count."""
    text = Client().get("/metrics").content.decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "sluice_loop_stalls_total" and sample.labels["cause"] == cause
    )


@pytest.fixture
def home(settings: Any) -> Iterator[Path]:
    """Return a home whose broker the console asks.

    Socket paths must be short, so it is not below `tmp_path`.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-stopped-") as made:
        settings.SLUICE_RUN_DIRECTORY = Path(made) / "run"
        yield Path(made)


def test_a_process_that_was_stopped_is_a_standstill_in_log_pages_and_metrics(
    home: Path, operator: Any, instance: Instance
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"} | {
        "SLUICE_HOME": str(home),
        "SLUICE_TCP_PORT": str(free_port()),
        "SLUICE_WEBSOCKET_PORT": str(free_port()),
        "SLUICE_STOMP_PORT": "0",
        "SLUICE_STOMP_WS_PORT": "0",
        "DJANGO_SETTINGS_MODULE": "console.project.settings",
    }
    manage = [sys.executable, "manage.py"]
    subprocess.run([*manage, "migrate", "-v0"], cwd=ROOT, env=environment, check=True, timeout=SLOW_S * 4)
    control = home / "run" / f"{instance.name}.sock"
    page = Client()
    page.force_login(operator)
    log = home / "output"
    with log.open("wb") as output:
        broker = subprocess.Popen(
            [*manage, "runbroker"], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            assert becomes_true_within(SLOW_S, lambda: broker_answers(control)), log.read_text()
            time.sleep(2)
            broker.send_signal(signal.SIGSTOP)
            time.sleep(4)
            broker.send_signal(signal.SIGCONT)
            wanted = {
                "log": lambda: "cause=process_stopped" in log.read_text(),
                "pages": lambda: "stalled for" in page.get("/standing/").content.decode(),
                "decisions": lambda: (
                    'data-stall="process_stopped"' in page.get("/decisions/").content.decode()
                ),
                "metrics": lambda: stalls_counted("process_stopped") >= 1,
            }
            found = {name for name, holds in wanted.items() if becomes_true_within(SLOW_S, holds)}
        finally:
            broker.kill()
            broker.wait()
    assert found == set(wanted), log.read_text()
