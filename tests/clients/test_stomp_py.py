"""stomp.py, as published, against a real broker."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import stomp

from broker_core.access import hash_password
from broker_core.config import AccessSettings, UserSettings
from broker_core.config.document import PolicyDocument
from broker_core.config.transports import ResumeFrom
from tests.support.broker_thread import BrokerThread, broker_thread
from tests.support.rules import policy_with, rule
from tests.support.stomp_client import port_of, stomp_policy

KINDS = {"1.0": stomp.Connection10, "1.1": stomp.Connection11, "1.2": stomp.Connection12}


class RecordingListener(stomp.ConnectionListener):  # type: ignore[misc]
    """A listener that records its callbacks in order."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.receipts: queue.Queue[str] = queue.Queue()
        self.errors: queue.Queue[Any] = queue.Queue()
        self.ends: queue.Queue[str] = queue.Queue()

    def on_message(self, frame: Any) -> None:
        self.messages.put(frame)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.put(frame.headers["receipt-id"])

    def on_error(self, frame: Any) -> None:
        self.errors.put(frame)

    def on_disconnected(self) -> None:
        self.ends.put("disconnected")

    def on_heartbeat_timeout(self) -> None:
        self.ends.put("timeout")

    def bodies(self, number: int) -> list[str]:
        return [self.messages.get(timeout=20).body for _ in range(number)]


Connect = Callable[..., Any]


@contextmanager
def stomp_broker(home: Path, policy: PolicyDocument | None = None) -> Iterator[tuple[BrokerThread, Connect]]:
    """Run a broker; yield it and a function that makes connections, each with its `heard`."""
    made: list[Any] = []
    with broker_thread(home / "home", policy or stomp_policy(), home / "control.sock") as thread:

        def connect(version: str = "1.2", before: tuple[tuple[str, int], ...] = (), **options: Any) -> Any:
            ports = [*before, ("127.0.0.1", port_of(thread.broker))]
            beats = {"heartbeats": options.pop("heartbeats")} if "heartbeats" in options else {}
            connection = KINDS[version](ports, **beats)
            connection.heard = RecordingListener()
            connection.set_listener("", connection.heard)
            connection.connect(wait=True, **options)
            made.append(connection)
            return connection

        try:
            yield thread, connect
        finally:
            for connection in made:
                if connection.is_connected():
                    connection.disconnect()


@pytest.mark.parametrize("version", KINDS)
def test_it_publishes_and_subscribes_in_every_version(tmp_path: Path, version: str) -> None:
    with stomp_broker(tmp_path) as (_, connect):
        one = connect(version)
        one.subscribe("/topic/a.*", id=1, ack="auto")
        one.send("/topic/a.b", "grün\n", content_type="text/plain", receipt="sent")
        frame = one.heard.messages.get(timeout=20)
        assert (frame.body, frame.headers["destination"]) == ("grün\n", "/topic/a.b")
        assert frame.headers["content-type"] == "text/plain"
        assert one.heard.receipts.get(timeout=20) == "sent"


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_acknowledgements_move_its_window(tmp_path: Path, version: str) -> None:
    with stomp_broker(tmp_path) as (_, connect):
        one = connect(version)
        one.subscribe("/topic/a", id="s", ack="client-individual", headers={"prefetch-count": "1"})
        for body in ("1", "2", "3"):
            one.send("/topic/a", body)

        def answer(how: Any) -> str:
            frame = one.heard.messages.get(timeout=20)
            name = frame.headers["ack" if version == "1.2" else "message-id"]
            how(name) if version == "1.2" else how(name, "s")
            return str(frame.body)

        assert [answer(one.ack), answer(one.nack), answer(one.ack)] == ["1", "2", "3"]


def test_transactions_are_kept_back_until_they_are_committed(tmp_path: Path) -> None:
    with stomp_broker(tmp_path) as (_, connect):
        one = connect()
        one.subscribe("/topic/a", id="s")
        for name, end in (("t", one.abort), ("u", one.commit)):
            one.begin(transaction=name)
            one.send("/topic/a", name, transaction=name)
            end(transaction=name)
        one.send("/topic/a", "last")
        assert one.heard.bodies(2) == ["u", "last"]


@pytest.mark.parametrize(
    "kept",
    [
        {"activemq.subscriptionName": "mine"},
        {"durable-subscription-name": "mine"},
        {"durable": "true", "auto-delete": "false"},
    ],
)
def test_a_durable_subscription_brings_what_came_meanwhile(tmp_path: Path, kept: dict[str, str]) -> None:
    with stomp_broker(tmp_path) as (_, connect):
        who = (
            {"headers": {"client-id": "app"}}
            if "durable" not in kept
            else {"username": "guest", "passcode": "guest"}
        )
        one, other = connect(**who), connect()
        one.subscribe("/topic/a", id="s", ack="client", headers=kept, receipt="there")
        assert one.heard.receipts.get(timeout=20) == "there"
        one.disconnect()
        other.send("/topic/a", "meanwhile", receipt="sent")
        assert other.heard.receipts.get(timeout=20) == "sent"
        again = connect(**who)
        again.subscribe("/topic/a", id="s", ack="client", headers=kept)
        assert again.heard.bodies(1) == ["meanwhile"]


def test_selectors_and_replays(tmp_path: Path) -> None:
    with stomp_broker(tmp_path) as (_, connect):
        one = connect()
        for number in range(4):
            one.send("/topic/a", str(number), headers={"n": str(number)}, receipt=str(number))
            assert one.heard.receipts.get(timeout=20) == str(number)
        one.subscribe("/topic/a", id="s", headers={"selector": "n >= 2", "x-stream-offset": "first"})
        assert one.heard.bodies(2) == ["2", "3"]


def test_heart_beats_hold_a_reader_of_a_quiet_topic_on_a_busy_broker(tmp_path: Path) -> None:
    with stomp_broker(tmp_path) as (_, connect):
        one, publisher = connect(heartbeats=(2_000, 2_000)), connect()
        one.subscribe("/topic/quiet", id=1, headers={"x-sluice-bookmark": "0"})
        for number in range(80):
            publisher.send("/topic/busy", "x", receipt=str(number))
            publisher.heard.receipts.get(timeout=20)
            time.sleep(0.1)
        assert one.is_connected() and one.heard.ends.empty()


def test_its_booleans_are_obeyed(tmp_path: Path) -> None:
    """stomp.py writes Python's values into headers, as False."""
    with stomp_broker(tmp_path) as (_, connect):
        one = connect()
        one.send("/queue/jobs", "never")
        one.subscribe("/queue/jobs", id=1, ack="client-individual")
        one.nack(one.heard.messages.get(timeout=20).headers["ack"], requeue=False)
        one.subscribe("/queue/dead.jobs", id=2)
        assert one.heard.bodies(1) == ["never"]
        one.subscribe("/queue/jobs", id=3, headers={"browser": True})
        assert one.heard.errors.get(timeout=20).headers["x-sluice-header"] == "browser"


def test_heart_beats_hold_an_idle_connection(tmp_path: Path) -> None:
    with stomp_broker(tmp_path) as (_, connect):
        one = connect(heartbeats=(1_000, 1_000))
        with pytest.raises(queue.Empty):
            one.heard.ends.get(timeout=5)
        assert one.is_connected()


def test_it_fails_over_and_shows_who_it_is(tmp_path: Path) -> None:
    policy = stomp_policy(authentication="password")
    policy = replace(
        policy, access=AccessSettings(users=(UserSettings("guest", password=hash_password("guest")),))
    )
    with stomp_broker(tmp_path, policy) as (_, connect):
        one = connect(before=(("127.0.0.1", 1),), username="guest", passcode="guest")
        one.subscribe("/topic/a", id="s")
        one.send("/topic/a", "1")
        assert one.heard.bodies(1) == ["1"]
        with pytest.raises(stomp.exception.ConnectFailedException):
            connect(username="guest", passcode="wrong")


def test_a_slow_client_gets_the_reason_and_is_closed(tmp_path: Path) -> None:
    with stomp_broker(tmp_path, stomp_policy(policy_with(rule("disconnect")))) as (_, connect):
        slow, other = connect(), connect()
        slow.subscribe("/topic/t", id="s", ack="client", headers={"prefetch-count": "2"})
        for number in range(20):
            other.send("/topic/t", str(number), receipt=str(number))
        error = slow.heard.errors.get(timeout=20)
        assert error.headers["message"] == "slow_client_backlog"
        assert float(error.headers["x-sluice-observed"]) > float(error.headers["x-sluice-limit"])
        assert slow.heard.ends.get(timeout=20) == "disconnected"


def _slow_and_back(
    home: Path, resume: ResumeFrom, ack: str = "client-individual"
) -> tuple[list[str], list[dict[str, str]]]:
    """Return the messages delivered after a slow client was closed and subscribed again.

    The client acknowledges 0 and 1 before. Messages are large, since a replay delivers some 16 KiB at once.
    """
    policy = stomp_policy(policy_with(rule("disconnect")), resume=resume)
    with stomp_broker(home, policy) as (_, connect):
        slow, other = connect(), connect()

        def subscribe(connection: Any) -> None:
            connection.subscribe(
                "/topic/t", id="s", ack=ack, headers={"prefetch-count": "4"}, receipt="there"
            )
            assert connection.heard.receipts.get(timeout=20) == "there"

        def send(*bodies: str) -> None:
            for body in bodies:
                other.send("/topic/t", body.ljust(4_096), receipt=body)
                assert other.heard.receipts.get(timeout=20) == body

        subscribe(slow)
        send("0", "1", "2")
        done = [slow.heard.messages.get(timeout=20) for _ in range(3)][:2]
        slow.ack(done[-1].headers["ack"])
        if ack == "client-individual":
            slow.ack(done[0].headers["ack"])
        send(*map(str, range(3, 14)))
        assert slow.heard.errors.get(timeout=20).headers["message"] == "slow_client_backlog"
        assert slow.heard.ends.get(timeout=20) == "disconnected"
        send("away")
        slow.heard = RecordingListener()
        slow.set_listener("", slow.heard)
        slow.connect(wait=True)
        subscribe(slow)
        send("live")
        found: list[Any] = []
        bodies: list[str] = []
        while not bodies or bodies[-1] != "live":
            found.append(slow.heard.messages.get(timeout=20))
            bodies.append(found[-1].body.strip())
            slow.ack(found[-1].headers["ack"])
        assert [frame.body.strip() for frame in done] == ["0", "1"]
        return bodies, [frame.headers for frame in found]


@pytest.mark.parametrize("ack", ["client", "client-individual"])
def test_a_slow_one_that_comes_back_as_it_was_gets_what_it_had_not_acknowledged(
    tmp_path: Path, ack: str
) -> None:
    bodies, headers = _slow_and_back(tmp_path, ResumeFrom.LAST_ACKED, ack)
    assert bodies == [*map(str, range(2, 14)), "away", "live"]
    assert [one["redelivered"] for one in headers] == ["true"] * 4 + ["false"] * 10


def test_a_slow_client_that_reconnects_learns_its_gap_and_can_replay_it(tmp_path: Path) -> None:
    bodies, headers = _slow_and_back(tmp_path, ResumeFrom.NOW)
    assert bodies == ["live"]
    assert headers[0]["x-sluice-missed"] == "[test-1|3|:test-1|15|]"
