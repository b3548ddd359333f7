"""Policy decisions are executed, reported, recorded and accounted once, against a running broker.

The slow client has a full acknowledgement window, so no test depends on socket buffers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.documents.system_records import DecisionEntry
from broker_core.errors import ClientError
from broker_core.slow_clients.evaluate import rule_state
from tests.support.brokers import address_of, ask, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with, rule


def numbered_bodies(start: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


class WindowScenario:
    def __init__(self, broker: Broker, writer: AsyncClient, slow: RawClient) -> None:
        self.broker, self.writer, self.slow = broker, writer, slow

    async def publish(self, start: int, count: int, topic: str = "t") -> None:
        for body in numbered_bodies(start, count):
            await self.writer.publish_many(topic, [body])
        await self.writer.flush()

    def balanced(self) -> bool:
        """matched = sent + given up + waiting, of the slow client."""
        connection = self.broker.engine.roster.clients["slow"]
        account, spool = connection.account, connection.backlog.spool
        queued = connection.backlog.messages + (spool.messages if spool is not None else 0)
        return (
            account.matched.messages
            == sum(
                one.messages for one in (account.acknowledged, account.in_flight, account.discarded_volume)
            )
            + queued
        )

    async def decided(self) -> DecisionEntry:
        """The first decision, once it is recorded."""
        await until(lambda: self.broker.engine.decisions.recent)
        return self.broker.engine.decisions.recent[0]


@asynccontextmanager
async def slow_client(
    tmp_path: Path, *rules: dict[str, Any], topic: str = "t", **subscribe: Any
) -> AsyncIterator[WindowScenario]:
    """Run a broker with a client whose window of 2 is full from the third message on."""
    async with (
        running_broker(tmp_path, policy_with(*rules)) as broker,
        AsyncClient(address_of(broker), "writer") as writer,
    ):
        slow = await RawClient.connect(broker, "slow")
        slow.send_command(
            {"c": "subscribe", "id": "s", "topic": topic, "ack": "client", "prefetch": 2, **subscribe}
        )
        await slow.read_until("processed")
        yield WindowScenario(broker, writer, slow)
        slow.close()


async def test_the_oldest_are_discarded_and_the_ledger_has_the_interval(tmp_path: Path) -> None:
    async with slow_client(tmp_path, rule("discard_oldest")) as there:
        await there.publish(1, 30)
        assert (await there.decided()).action == "discard_oldest"
        assert await there.slow.deliveries(2) == numbered_bodies(1, 2)
        there.slow.send_command({"c": "ack", "id": "s", "upto": 2})
        assert await there.slow.deliveries(2) == numbered_bodies(23, 2), (
            "two of the ten that may be owed were on their way"
        )
        await until(there.balanced)
        await until(lambda: there.broker.engine.ledger.recent)
        (loss,) = await ask(there.broker, "ledger", client="slow")
        assert (loss["cause"], loss["messages"], loss["rule"]) == ("discarded", 20, "test")
        assert (loss["from"], loss["to"]) == ("test-1|3|", "test-1|22|")


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
async def test_a_firehose_of_discards_is_one_decision_a_second(mode: str, tmp_path: Path) -> None:
    """In shadow mode would-be discards are counted, and no message is discarded."""
    async with slow_client(tmp_path, rule("discard_oldest", mode=mode)) as there:
        for start in range(1, 301):
            await there.publish(start, 1)
        decisions, slow = there.broker.engine.decisions.recent, there.broker.engine.roster.clients["slow"]
        await until(lambda: sum(one.lost for one in decisions) == 290)
        assert slow.account.lost_volume.messages == (290 if mode == "enforce" else 0)
        seconds = (decisions[-1].at - decisions[0].at) / 1_000 + 2
        assert len(decisions) <= seconds and sum(one.times for one in decisions) > 10 * len(decisions)
        most = max(decisions, key=lambda one: one.times)
        assert f"discarded ({most.times:,} times within a second), the oldest first" in most.sentence


async def test_only_the_latest_of_each_key_remains(tmp_path: Path) -> None:
    async with slow_client(tmp_path, rule("conflate"), snapshot_key="/k", bookmark="0|1|") as there:
        for number in range(11):
            await there.writer.publish("t", {"k": number % 3, "n": number})
            await there.writer.flush()
        decision = await there.decided()
        slow = there.broker.engine.roster.clients["slow"]
        await until(lambda: slow.account.lost_volume.messages == 6)
        assert there.balanced()
        assert decision.lost == 6 and "6 messages are replaced by later ones" in decision.sentence
        there.slow.send_command({"c": "ack", "id": "s", "upto": 2})
        assert (await there.slow.deliveries(4))[2:] == [b'{"k":2,"n":8}', b'{"k":0,"n":9}']


async def test_in_shadow_it_counts_what_conflating_would_have_left_out_however_long_it_goes_on(
    tmp_path: Path,
) -> None:
    """Single messages arrive with one of three keys or without one; now and then two are acknowledged."""
    found = dict[str, int]()
    for mode in ("enforce", "shadow"):
        async with slow_client(tmp_path / mode, rule("conflate", mode=mode), snapshot_key="/k") as there:
            engine = there.broker.engine
            for number in range(1, 61):
                await there.writer.publish("t", {"n": number} if number % 7 == 0 else {"k": number % 3})
                await there.writer.flush()
                await engine.reader.run(bool)  # behind whatever was given to it meanwhile
                if number % 20 == 0:
                    there.slow.send_command({"c": "ack", "id": "s", "upto": number // 10})
                    await there.slow.deliveries(2)
            engine.decisions.close_second()
            found[mode] = sum(one.lost for one in engine.decisions.recent)
            slow = engine.roster.clients["slow"]
            assert slow.account.lost_volume.messages == (found[mode] if mode == "enforce" else 0)
    assert found["shadow"] == found["enforce"] > 20


@pytest.mark.parametrize(("bookmark", "done"), [("0|1|", "continue_from_journal"), (None, "offline")])
async def test_a_whole_client_goes_on_from_the_journal_only_if_its_subscriptions_read_there(
    tmp_path: Path, bookmark: str | None, done: str
) -> None:
    options = {"bookmark": bookmark} if bookmark else {}
    own = rule("continue_from_journal", signal="outbound_messages", scope={})
    async with slow_client(tmp_path, own, **options) as there:
        await there.publish(1, 30)
        decision = await there.decided()
        assert decision.action == done, decision.sentence


async def test_a_client_is_warned_and_goes_on(tmp_path: Path) -> None:
    async with slow_client(tmp_path, rule("warn")) as there:
        await there.publish(1, 20)
        notice = await there.slow.read_until("notice")
        assert (notice["subscription"], notice["limit"], notice["unit"]) == ("s", 10, "messages")
        there.slow.send_command({"c": "told", "decision": notice["decision"]})
        decision = await there.decided()
        assert (decision.told, decision.id, decision.action) == ("yes", notice["decision"], "warn")
        assert "slow" in there.broker.engine.roster.clients


async def test_a_paused_subscription_goes_on_after_its_time(tmp_path: Path) -> None:
    async with slow_client(tmp_path, rule("pause", for_ms=300)) as there:
        await there.publish(1, 20)
        await there.slow.read_until("notice")
        lane = there.broker.engine.roster.clients["slow"].backlog.queues[1]
        assert lane.paused
        there.slow.send_command({"c": "ack", "id": "s", "upto": 2})
        await until(lambda: not lane.paused)
        await until(lambda: lane.messages < 18)


async def test_the_end_of_a_pause_ends_no_later_one(tmp_path: Path) -> None:
    async with slow_client(tmp_path, rule("pause", for_ms=300)) as there:
        await there.publish(1, 20)
        await there.slow.read_until("notice")
        lane = there.broker.engine.roster.clients["slow"].backlog.queues[1]
        await ask(there.broker, "resume", name="slow")
        await ask(there.broker, "pause", name="slow")
        first = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.35, first.set_result, None)
        await first
        assert lane.paused, "an operator's pause has no end"
        await ask(there.broker, "resume", name="slow")
        assert not lane.paused


async def test_a_cancelled_subscription_ends_and_its_neighbour_goes_on(tmp_path: Path) -> None:
    async with slow_client(tmp_path, rule("cancel_subscription")) as there:
        there.slow.send_command({"c": "subscribe", "id": "other", "topic": "other"})
        await there.slow.read_until("processed")
        await there.publish(1, 20)
        cancelled = await there.slow.read_until("cancelled")
        assert (cancelled["id"], cancelled["code"]) == ("s", "slow_client_backlog")
        await there.publish(100, 1, "other")
        while (await there.slow.deliveries(1)) != [b"100"]:
            pass
        assert list(there.broker.engine.roster.clients["slow"].subscriptions) == ["other"]
        await until(there.balanced)


async def test_what_a_cancel_says_of_each_subscription_and_of_all_is_what_it_came_to(tmp_path: Path) -> None:
    """The rule cancels all subscriptions of the client.

    The resume bookmark is before the first unacknowledged record of any.
    """
    of_all = {**rule("cancel_subscription", limit=20), "scope": {}}
    async with slow_client(tmp_path, of_all) as there:
        for id, topic in (("later", "other"), ("lost", "scratch.x")):
            there.slow.send_command(
                {"c": "subscribe", "id": id, "topic": topic, "ack": "client", "prefetch": 2}
            )
            await there.slow.read_until("processed")
        await there.publish(1, 5)
        await there.publish(6, 5, "other")
        await there.publish(11, 11, "scratch.x")
        said = {one["id"]: one for one in [await there.slow.read_until("cancelled") for _ in range(3)]}
        assert "5 messages are in the journal and can be replayed from test-1|0|." in said["s"]["message"]
        assert (said["later"]["kept"], said["later"]["bookmark"]) == (5, "test-1|5|")
        assert "5 messages are in the journal and can be replayed from test-1|5|." in said["later"]["message"]
        assert "11 messages are lost" in said["lost"]["message"] and said["lost"]["lost"] == 11
        notice = await there.slow.read_until("notice")
        assert (notice["kept"], notice["lost"], notice["resume"]) == (10, 11, "test-1|0|")


async def test_client_and_operator_learn_what_a_close_kept_and_lost(
    tmp_path: Path,
) -> None:
    async with slow_client(tmp_path) as there:
        there.slow.send_command({"c": "subscribe", "id": "u", "topic": "scratch.x", "ack": "client"})
        await there.slow.read_until("processed")
        await there.publish(1, 7)
        await there.publish(8, 3, "scratch.x")
        answer = await ask(there.broker, "disconnect", name="slow", reason="because")
        assert (answer["kept"], answer["lost"], answer["bookmark"]) == (7, 3, "test-1|0|")
        closing = await there.slow.read_until("closing")
        assert (closing["code"], closing["kept"], closing["lost"]) == ("operator_disconnect", 7, 3)
        again = await RawClient.connect(there.broker, "slow")
        again.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": closing["bookmark"]})
        assert await again.deliveries(7) == numbered_bodies(1, 7)
        again.close()


async def test_a_window_counts_what_waits_in_the_log_for_rules_on_the_client_too(tmp_path: Path) -> None:
    """As for rules on the subscription, messages that wait in the log count: the application reports its
    progress by acknowledging.
    """
    of_client = {**rule("warn"), "scope": {"client": "slow"}}
    async with slow_client(tmp_path, bookmark="0|1|") as there:
        (target,) = there.broker.engine.roster.clients["slow"].subscriptions.values()
        await there.publish(1, 20)
        there.broker.engine.control.fall_back(target)
        await until(lambda: target.cursor.is_behind and target.account.in_log.messages > 10)
        await there.broker.apply(policy_with(of_client, revision=2))
        notice = await there.slow.read_until("notice")
        assert (notice["observed"], notice["limit"]) == (20, 10)


async def test_a_dropped_client_is_notified_before_the_close_and_the_record_says_so(tmp_path: Path) -> None:
    async with slow_client(tmp_path, rule("disconnect")) as there:
        await there.publish(1, 20)
        notice = await there.slow.read_until("notice")
        assert notice["code"] == "slow_client_backlog" and notice["resume_token"]
        there.slow.send_command({"c": "told", "decision": notice["decision"]})
        assert (await there.slow.read_until("closing"))["code"] == "slow_client_backlog"
        assert await there.slow.next_frame() is None
        assert (await there.decided()).told == "yes"
        await until(lambda: there.broker.engine.ledger.recent)
        (loss,) = there.broker.engine.ledger.recent
        assert (loss.cause.value, loss.tally.messages) == ("kept_in_log", 20), (
            "two were sent and aren't acknowledged"
        )


async def test_what_no_bookmark_brings_back_is_lost_with_the_connection(tmp_path: Path) -> None:
    async with slow_client(tmp_path, rule("disconnect", topic=">"), topic=">") as there:
        await there.publish(1, 8, "scratch.t")
        await there.publish(9, 8, "t")
        await until(lambda: len(there.broker.engine.ledger.recent) == 2)
        gone, kept = sorted(there.broker.engine.ledger.recent, key=lambda loss: loss.cause.value)
        assert (gone.cause.value, gone.tally.messages, gone.tally.unjournaled, gone.tally.first) == (
            "disconnected",
            8,
            8,
            0,
        )
        assert (kept.cause.value, kept.tally.unjournaled) == ("kept_in_log", 0) and kept.tally.messages >= 5
        assert kept.tally.nbytes > 0 and gone.tally.nbytes > 0


async def test_a_client_that_says_nothing_is_closed_at_the_deadline_and_it_stays_unknown(
    tmp_path: Path,
) -> None:
    async with slow_client(tmp_path, rule("disconnect")) as there:
        await there.publish(1, 20)
        assert (await there.decided()).told == "unknown"
        await there.slow.read_until("closing")


async def test_a_refused_name_cannot_log_on_until_its_time_is_over(tmp_path: Path) -> None:
    async with slow_client(tmp_path, rule("refuse", for_ms=3_000)) as there:
        await there.publish(1, 20)
        notice = await there.slow.read_until("notice")
        assert notice["retry_after_ms"] == 3_000
        again = await RawClient.open(there.broker)
        again.send_command({"c": "logon", "name": "slow"})
        assert (await again.read_until("error"))["code"] == "name_refused"
        closing = await again.read_until("closing")
        assert 0 < closing["retry_after_ms"] <= 3_000


async def test_a_client_is_asked_to_close(tmp_path: Path) -> None:
    async with slow_client(tmp_path, rule("ask_to_close")) as there:
        await there.publish(1, 20)
        asked = await there.slow.read_until("close_requested")
        assert asked["code"] == "slow_client_backlog"


async def test_one_that_ignores_it_is_asked_again_and_never_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_state, "REPEAT_REQUEST_MS", 50)
    async with slow_client(tmp_path, rule("ask_to_close")) as there:
        await there.publish(1, 20)
        for number in range(3):
            await there.slow.read_until("close_requested")
            await there.publish(21 + number, 1)
        await until(lambda: len(there.broker.engine.decisions.recent) >= 3, 15)
        assert "slow" in there.broker.engine.roster.clients and there.balanced()


async def test_the_library_closes_when_asked_and_comes_back(tmp_path: Path) -> None:
    async with running_broker(tmp_path, policy_with(rule("ask_to_close"))) as broker:
        async with (
            AsyncClient(address_of(broker), "writer") as writer,
            AsyncClient(address_of(broker), "slow") as slow,
        ):
            await slow.subscribe("t", ack="client", prefetch=2)
            for body in numbered_bodies(1, 20):
                await writer.publish_many("t", [body])
            await until(lambda: slow.connections == 2)


async def test_what_waits_is_read_from_the_journal_instead(tmp_path: Path) -> None:
    async with slow_client(tmp_path, rule("continue_from_journal"), bookmark="0|1|") as there:
        await there.publish(1, 20)
        assert (await there.decided()).action == "continue_from_journal"
        assert await there.slow.deliveries(2) == numbered_bodies(1, 2)
        for upto in range(2, 21, 2):
            there.slow.send_command({"c": "ack", "id": "s", "upto": upto})
            if upto < 20:
                assert await there.slow.deliveries(2) == numbered_bodies(upto + 1, 2)
        await until(there.balanced)
        assert there.broker.engine.roster.clients["slow"].account.lost_volume.messages == 0


async def test_in_shadow_nothing_happens_but_the_record(tmp_path: Path) -> None:
    async with slow_client(tmp_path, rule("disconnect", mode="shadow")) as there:
        await there.publish(1, 20)
        decision = await there.decided()
        assert (decision.mode, decision.action) == ("shadow", "disconnect")
        assert "slow" in there.broker.engine.roster.clients and there.balanced()


async def test_a_durable_subscription_is_deleted_only_where_the_policy_confirms_it(tmp_path: Path) -> None:
    confirmed = rule("delete_durable", confirm_delete=True)
    async with slow_client(tmp_path, confirmed, durable="orders") as there:
        await there.publish(1, 20)
        assert (await there.decided()).action == "delete_durable"
        assert await ask(there.broker, "durables") == []


async def test_a_dropped_client_resumes_from_the_log_with_its_token(tmp_path: Path) -> None:
    async with slow_client(tmp_path, rule("disconnect")) as there:
        await there.publish(1, 20)
        token = (await there.slow.read_until("notice"))["resume_token"]
        await there.publish(21, 5)
        again = await RawClient.connect(there.broker, "slow")
        again.send_command({"c": "subscribe", "id": "s", "topic": "t", "resume": token})
        resumed = await again.read_until("resumed")
        assert (resumed["how"], resumed["missed"]) == ("log", 0)
        assert (resumed["from"], resumed["to"]) == ("test-1|0|", "test-1|25|"), (
            "after the one, up to the other"
        )
        assert await again.deliveries(25) == numbered_bodies(1, 25), "what wasn't acknowledged comes again"
        again.close()


@pytest.mark.parametrize(("how", "missed", "bodies"), [("conflated", 24, [b"25"]), ("now", 25, [])])
async def test_a_dropped_client_may_skip_and_learns_how_much(
    tmp_path: Path, how: str, missed: int, bodies: list[bytes]
) -> None:
    async with slow_client(tmp_path, rule("disconnect")) as there:
        await there.publish(1, 20)
        token = (await there.slow.read_until("notice"))["resume_token"]
        await there.publish(21, 5)
        again = await RawClient.connect(there.broker, "slow")
        again.send_command({"c": "subscribe", "id": "s", "topic": "t", "resume": token, "resume_how": how})
        resumed = await again.read_until("resumed")
        assert (resumed["how"], resumed["missed"], resumed.get("exact", True)) == (how, missed, True)
        await there.publish(26, 1)
        assert await again.deliveries(len(bodies) + 1) == [*bodies, b"26"]
        again.close()


async def test_a_token_of_somebody_else_or_of_another_subscription_is_refused(tmp_path: Path) -> None:
    async with slow_client(tmp_path, rule("disconnect")) as there:
        await there.publish(1, 20)
        token = (await there.slow.read_until("notice"))["resume_token"]
        async with AsyncClient(address_of(there.broker), "thief") as thief:
            thief._subscriptions.resume_token = token
            with pytest.raises(ClientError) as caught:
                await asyncio.wait_for(_resume(there.broker, "thief2", token), 5)
            assert caught.value.code == "bad_resume_token"


async def _resume(broker: Broker, name: str, token: str) -> None:
    raw = await RawClient.connect(broker, name)
    raw.send_command({"c": "subscribe", "id": "s", "topic": "t", "resume": token})
    error = await raw.read_until("error")
    raw.close()
    raise ClientError(error["code"], error["message"])


async def test_a_decision_whose_notice_is_unanswered_when_the_broker_stops_is_in_the_journal(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, policy_with(rule("warn"))) as broker:
        slow = await RawClient.connect(broker, "slow")
        slow.send_command({"c": "subscribe", "id": "s", "topic": "t", "ack": "client", "prefetch": 2})
        await slow.read_until("processed")
        async with AsyncClient(address_of(broker), "writer") as writer:
            await writer.publish_many("t", numbered_bodies(1, 20))
            await writer.flush()
        notice = await slow.read_until("notice")
        assert not broker.engine.decisions.recent, "the client may still answer"
    slow.close()
    assert [(one.id, one.told) for one in broker.engine.decisions.recent] == [(notice["decision"], "unknown")]
    async with (
        running_broker(tmp_path) as again,
        AsyncClient(address_of(again), "reader") as reader,
    ):
        decisions = await reader.subscribe("$SLUICE.decisions", bookmark="0")
        message = await asyncio.wait_for(anext(aiter(decisions)), 60)
        assert json.loads(message.body)["id"] == notice["decision"]


async def test_a_queue_consumer_with_nothing_to_spool_is_not_offlined(tmp_path: Path) -> None:
    """Records wait in the queue for any consumer, so its spool would stay empty."""
    offline = rule("offline", 1, topic="queue.jobs") | {"name": "offline"}
    notify = rule("notify", 1, topic="queue.jobs") | {"name": "notify"}
    shared = {"durable": "queue.jobs", "shared": True, "bookmark": "0|1|"}
    async with slow_client(tmp_path, offline, notify, topic="queue.jobs", **shared) as there:
        await there.publish(1, 10, "queue.jobs")
        assert await there.slow.deliveries(2) == numbered_bodies(1, 2)
        await there.decided()
        assert [one.action for one in there.broker.engine.decisions.recent] == ["notify"]
        assert there.broker.engine.roster.clients["slow"].backlog.state.value == "live"
