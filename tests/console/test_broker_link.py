from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker_core.control import exit_report
from broker_core.documents.requests import GetClient, GetStatus
from broker_core.errors import JournalError, OperatorError
from console.broker_link import BrokerLink, BrokerUnavailable, link_to
from tests.support.fake_broker import FakeBroker


@contextmanager
def odd_broker(path: Path, behave: Callable[[socket.socket], None]) -> Iterator[BrokerLink]:
    """Listen on a socket and handle one connection with `behave`; yield a link to it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                behave(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield BrokerLink(path, timeout_s=0.3)
        thread.join(5)


def test_call_returns_the_result(broker: FakeBroker) -> None:
    assert link_to("sluice-1").call(GetStatus()).instance == "sluice-1"


def test_error_of_the_broker_is_raised_with_its_code(broker: FakeBroker) -> None:
    with pytest.raises(OperatorError) as refused:
        link_to("sluice-1").call(GetClient(name="nobody"))
    assert refused.value.code == "unknown_client"
    assert not isinstance(refused.value, BrokerUnavailable)


def test_broker_that_does_not_run_is_away(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnavailable) as away:
        BrokerLink(tmp_path / "none.sock").call(GetStatus())
    assert away.value.code == "broker_away"


def test_broker_that_ended_by_itself_said_why(tmp_path: Path) -> None:
    error = JournalError("journal_failed", "The disk refused a sync.", "Look at the disk.")
    exit_report.write_exit_report(tmp_path / "none.sock", error, 1_795_268_700 * 10**9)
    with pytest.raises(BrokerUnavailable, match=r"journal_failed.*The disk refused a sync") as away:
        BrokerLink(tmp_path / "none.sock").call(GetStatus())
    assert (away.value.code, away.value.fix) == ("broker_away", "Look at the disk.")
    exit_report.delete_exit_report(tmp_path / "none.sock")
    with pytest.raises(BrokerUnavailable, match="can't be reached"):
        BrokerLink(tmp_path / "none.sock").call(GetStatus())


def test_broker_that_does_not_answer_is_away_in_time(tmp_path: Path) -> None:
    with odd_broker(tmp_path / "b.sock", lambda connection: connection.recv(1) and time.sleep(0.5)) as link:
        with pytest.raises(BrokerUnavailable, match="did not answer"):
            link.call(GetStatus())


def test_bytes_that_drip_in_do_not_stretch_the_time_out(tmp_path: Path) -> None:
    def drip(connection: socket.socket) -> None:
        connection.recv(100)
        try:
            for _ in range(20):
                connection.sendall(b" ")
                time.sleep(0.05)
        except OSError:
            pass

    started = time.monotonic()
    with odd_broker(tmp_path / "b.sock", drip) as link, pytest.raises(BrokerUnavailable):
        link.call(GetStatus())
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"not json\n",
        b'{"ok": false}\n',
        b"[]\n",
        b'{"ok": true, "result"',
        b'{"ok": true, "result": {}}\n',
    ],
)
def test_broken_answer_is_told_as_one(tmp_path: Path, answer: bytes) -> None:
    def behave(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(answer)

    with odd_broker(tmp_path / "b.sock", behave) as link, pytest.raises(BrokerUnavailable) as failed:
        link.call(GetStatus())
    assert failed.value.code == "broker_failed"
