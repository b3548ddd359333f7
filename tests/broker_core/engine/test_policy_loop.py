"""A failure of one client does not affect others in the same pass of the policy loop.

Each test injects a fault into the broker's own code.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.config.rule_terms import EnforcementMode, PolicyAction
from broker_core.connections import subscription_setup
from broker_core.connections.connection import Connection
from broker_core.delivery.backlog import Backlog
from broker_core.engine.enforcement import offline_client
from broker_core.engine.policy_loop import PolicyLoop
from broker_core.engine.subscriptions import MAX_SUBSCRIPTIONS
from broker_core.errors import JournalError
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.positions import store
from broker_core.replay.replay import Replay
from broker_core.slow_clients.evaluate.decision import Decision
from tests.broker_core.slow_clients.evaluate.test_decision import AGE
from tests.support.brokers import address_of, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with, rule


class InjectedError(RuntimeError):
    """An error type that the code under test does not handle by name."""


def raise_injected(*_: object, **__: object) -> NoReturn:
    raise InjectedError("put in by the test")


class ThreeSubscribers:
    """A broker with a publisher and the subscribers "first", "bad" and "last" to topic a, in this order."""

    def __init__(self, broker: Broker, writer: AsyncClient, raw: dict[str, RawClient]) -> None:
        self.broker, self.writer, self.raw = broker, writer, raw

    def connection(self, name: str) -> Connection:
        return self.broker.engine.roster.clients[name]

    async def check_others_unaffected(self) -> None:
        """Check that publishers are acknowledged, healthy clients receive, and the bad one is notified and
        closed.
        """
        for body in (b"1", b"2"):
            await self.writer.publish_many("a", [body])
            await self.writer.flush()
            assert [await self.raw[name].deliveries(1) for name in ("first", "last")] == [[body], [body]]
        assert (await self.raw["bad"].read_until("closing"))["code"] == "internal_error"
        assert "bad" not in self.broker.engine.roster.clients
        assert self.broker.engine.guard.find_usage("bad") is None


@asynccontextmanager
async def three_subscribers(tmp_path: Path, **options: Any) -> AsyncIterator[ThreeSubscribers]:
    async with (
        running_broker(tmp_path, **options) as broker,
        AsyncClient(address_of(broker), "writer") as writer,
    ):
        made = ThreeSubscribers(broker, writer, {})
        for name in ("first", "bad", "last"):
            raw = made.raw[name] = await RawClient.connect(broker, name)
            raw.send_command({"c": "subscribe", "id": "s", "topic": "a"})
            await raw.read_until("processed")
        yield made


def only_for(owner: object, method: Callable[..., Any], of: Callable[[Any], object]) -> Callable[..., Any]:
    """A method that fails for one object and does its work for all others."""

    def chosen(self: Any, *given: Any, **named: Any) -> Any:
        return raise_injected() if of(self, *given) is owner else method(self, *given, **named)

    return chosen


async def test_one_that_cannot_be_sent_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with three_subscribers(tmp_path) as clients:
        bad = clients.connection("bad").backlog
        monkeypatch.setattr(Backlog, "send", only_for(bad, Backlog.send, lambda backlog: backlog))
        await clients.check_others_unaffected()


async def test_one_that_cannot_be_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with three_subscribers(tmp_path) as clients:
        bad = clients.connection("bad")
        monkeypatch.setattr(
            PolicyLoop,
            "_report_usage",
            only_for(bad, PolicyLoop._report_usage, lambda _, connection: connection),
        )
        await clients.check_others_unaffected()


async def test_one_that_cannot_take_a_batch_costs_the_group_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_subscribers(tmp_path) as clients:
        bad = clients.connection("bad").subscriptions["s"]
        monkeypatch.setattr(
            ClientSubscription,
            "receive",
            only_for(bad, ClientSubscription.receive, lambda target, *_: target),
        )
        await clients.check_others_unaffected()


async def test_one_that_cannot_even_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with three_subscribers(tmp_path) as clients:
        bad = clients.connection("bad")
        with monkeypatch.context() as patched:
            patched.setattr(Backlog, "send", only_for(bad.backlog, Backlog.send, lambda backlog: backlog))
            patched.setattr(
                Connection, "close", only_for(bad, Connection.close, lambda connection, *_: connection)
            )
            for body in (b"1", b"2"):
                await clients.writer.publish_many("a", [body])
                await clients.writer.flush()
                assert [await clients.raw[name].deliveries(1) for name in ("first", "last")] == [
                    [body],
                    [body],
                ]
            assert clients.broker.engine.guard.find_usage("bad") is None, "its memory is given back"


async def test_one_that_cannot_be_looked_up_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_subscribers(tmp_path) as clients:
        engine, looked = clients.broker.engine, []
        bad = clients.connection("bad")

        def look(connection: Connection) -> None:
            looked.append(connection.name)
            if connection is bad:
                raise_injected()

        monkeypatch.setattr(engine.policy_loop.watchdog, "check_client", look)
        await until(lambda: {"first", "last", "bad"} <= set(looked))
        await until(lambda: looked.count("last") >= 3, seconds=10)
        assert bad.is_closed and looked.count("bad") == 1


async def test_a_decision_that_fails_leaves_the_others_to_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_with(rule("warn", 1, topic="a"))
    async with three_subscribers(tmp_path, policy=policy) as clients:
        engine, done = clients.broker.engine, []

        def carry_out(decision: Decision) -> None:
            done.append(decision.client)
            raise_injected()

        monkeypatch.setattr(engine.policy_loop.enforcer, "execute", carry_out)
        for name in ("first", "bad", "last"):
            clients.connection(name).sink.is_writable = False
        await clients.writer.publish_many("a", [b"1", b"2", b"3"])
        await clients.writer.flush()
        await until(lambda: set(done) == {"first", "bad", "last"})


async def test_what_is_decided_about_memory_and_disk_in_one_look_is_both_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_subscribers(tmp_path) as clients:
        engine = clients.broker.engine
        made = _a_decision("last"), _a_decision("first")
        monkeypatch.setattr(engine.guard, "on_queued", lambda *_: made[0])
        monkeypatch.setattr(engine.guard, "on_spooled", lambda *_: made[1])
        use = engine.policy_loop.find_usage(clients.connection("bad"))
        assert use is not None
        use.memory = use.disk = -1  # as if both had grown
        assert engine.policy_loop._report_usage(clients.connection("bad")) == list(made)
        use.memory = use.disk = 0


async def test_what_is_decided_as_a_client_comes_back_from_its_spool_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_subscribers(tmp_path) as clients:
        engine, done = clients.broker.engine, list[Decision]()
        bad = clients.connection("bad")
        await until(lambda: bad.sink.is_writable)
        bad.sink.is_writable = False
        await clients.writer.publish_many("a", [b"1"])
        await clients.writer.flush()
        offline_client(engine.enforcer, bad)
        decision = _a_decision("last")
        went_live, measure = engine.policy_loop.on_live, PolicyLoop._report_usage

        def measured(connection: Connection) -> None:
            with monkeypatch.context() as patched:
                patched.setattr(
                    PolicyLoop, "_report_usage", lambda self, one: [*measure(self, one), decision]
                )
                went_live(connection)

        monkeypatch.setattr(engine.policy_loop, "on_live", measured)
        monkeypatch.setattr(engine.policy_loop.enforcer, "execute", done.append)
        bad.sink.is_writable = True
        bad.on_writable()
        await until(lambda: decision in done)


async def test_a_spool_that_cannot_be_written_ends_a_client_of_two_subscriptions_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_subscribers(tmp_path) as clients:
        bad = clients.connection("bad")
        clients.raw["bad"].send_command({"c": "subscribe", "id": "second", "topic": "a"})
        await clients.raw["bad"].read_until("processed")
        await until(lambda: bad.sink.is_writable)
        bad.sink.is_writable = False
        offline_client(clients.broker.engine.enforcer, bad)
        spool = bad.backlog.spool
        assert spool is not None

        def full(*_: object, **__: object) -> NoReturn:
            raise JournalError("disk_full", "There is no room for a spool.")

        monkeypatch.setattr(type(spool), "append_reference", full)
        await clients.writer.publish_many("a", [b"1"])
        await clients.writer.flush()
        assert [await clients.raw[name].deliveries(1) for name in ("first", "last")] == [[b"1"], [b"1"]]
        assert (await clients.raw["bad"].read_until("closing"))["code"] == "spool_failed"


async def test_a_decision_of_a_client_that_left_does_not_fall_on_the_next_of_its_name(tmp_path: Path) -> None:
    async with three_subscribers(tmp_path) as clients:
        guard = clients.broker.engine.guard
        enforced, shadowed = _a_decision("bad"), replace(_a_decision("bad"), mode=EnforcementMode.SHADOW)
        guard._pending_decisions += [enforced, shadowed, _a_decision("last")]
        clients.connection("bad").close("shutting_down", "")
        assert [(one.client, one.mode) for one in guard._pending_decisions] == [
            ("bad", EnforcementMode.SHADOW),
            ("last", EnforcementMode.ENFORCE),
        ]
        guard._pending_decisions.clear()


async def test_a_decision_between_two_iterations_does_not_fall_on_the_next_client_of_its_name(
    tmp_path: Path,
) -> None:
    async with three_subscribers(tmp_path) as clients:
        settle = clients.broker.engine.policy_loop
        enforced, shadowed = _a_decision("bad"), replace(_a_decision("bad"), mode=EnforcementMode.SHADOW)
        settle._pending_decisions += [enforced, shadowed, _a_decision("last")]
        clients.connection("bad").close("client_replaced", "")
        assert [(one.client, one.mode) for one in settle._pending_decisions] == [
            ("bad", EnforcementMode.SHADOW),
            ("last", EnforcementMode.ENFORCE),
        ]
        settle._pending_decisions.clear()


async def test_a_replay_that_dies_tells_its_client_and_lets_go_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_subscribers(tmp_path) as clients:
        monkeypatch.setattr(Replay, "_move", raise_injected)
        await clients.writer.publish_many("a", [b"1"])
        await clients.writer.flush()
        raw = await RawClient.connect(clients.broker, "reader")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "a", "bookmark": "0"})
        assert (await raw.read_until("closing"))["code"] == "internal_error"
        assert clients.broker.engine.share.replays == 0
        assert not any("reader" in pin.owner for pin in clients.broker.engine.journal.pins())


@pytest.mark.parametrize(
    "options", [{"durable": "d"}, {"snapshot_key": "topic"}], ids=["durable", "snapshot"]
)
async def test_a_subscribe_whose_preparation_dies_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    async with three_subscribers(tmp_path) as clients:
        monkeypatch.setattr(subscription_setup.SubscribePreparation, "_find_position", raise_injected)
        raw = await RawClient.connect(clients.broker, "reader")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "a", **options})
        assert (await raw.read_until("closing"))["code"] == "internal_error"


@pytest.mark.parametrize(
    "problem", [OSError(errno.ENOSPC, "No space left on device"), InjectedError()], ids=["full", "unforeseen"]
)
async def test_a_durable_subscribe_whose_position_cannot_be_stored_is_refused_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    async with three_subscribers(tmp_path) as clients:
        raw = await RawClient.connect(clients.broker, "reader")

        def fails(*_: object) -> NoReturn:
            raise problem

        with monkeypatch.context() as patched:
            patched.setattr(store, "replace_durably", fails)
            raw.send_command({"c": "subscribe", "id": "s", "topic": "a", "durable": "d"})
            error = await raw.read_until("error")
            assert (error["code"], error["id"]) == ("not_kept", "s")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "a", "durable": "d"})
        await raw.read_until("processed")
        assert (tmp_path / "journal" / "test-1.kept.json").stat().st_size


async def test_subscribes_that_are_prepared_at_once_do_not_pass_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_SUBSCRIPTIONS > 3
    monkeypatch.setattr("broker_core.engine.subscriptions.MAX_SUBSCRIPTIONS", 3)
    async with three_subscribers(tmp_path) as clients:
        raw = await RawClient.connect(clients.broker, "reader")
        for number in range(5):
            raw.send_command({"c": "subscribe", "id": str(number), "topic": "a", "snapshot_key": "topic"})
        assert [(await raw.read_until("error"))["code"] for _ in range(2)] == ["too_many_subscriptions"] * 2
        assert len(clients.connection("reader").subscriptions) == 3


async def test_a_client_that_cannot_be_closed_does_not_keep_the_broker_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_subscribers(tmp_path) as clients:
        bad = clients.connection("bad")
        monkeypatch.setattr(
            Connection, "close", only_for(bad, Connection.close, lambda connection, *_: connection)
        )
        await clients.writer.publish_many("a", [b"1"])
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "reader") as reader:
        subscription = await reader.subscribe("a", bookmark="0")
        async with asyncio.timeout(10):
            assert (await anext(aiter(subscription))).body == b"1"


def _a_decision(client: str) -> Decision:
    return replace(AGE, client=client, action=PolicyAction.NOTIFY, mode=EnforcementMode.ENFORCE)
