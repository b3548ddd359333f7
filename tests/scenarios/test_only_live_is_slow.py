"""Among log subscriptions only `live` ones can make their client slow, and even they lose nothing.

By raw sockets.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.brokers import ask, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with, rule
from tests.support.stalled import StalledSubscriber

MESSAGES, BODY = 1_200, b"x" * 4_000
READERS: dict[str, dict[str, object]] = {
    "plain": {},
    "rated": {"rate": "1GB"},
    "live": {"durability": "live"},
}


async def test_subscriptions_that_are_not_live_read_the_log_and_live_ones_can_replay_it(
    tmp_path: Path,
) -> None:
    rules = (
        rule("disconnect", 20),
        rule("disconnect", 2_000_000, signal="outbound_bytes") | {"name": "bytes", "scope": {}},
    )
    async with running_broker(tmp_path, policy_with(*rules)) as broker:
        readers = {
            name: await StalledSubscriber.connect(broker, name, "t", bookmark="0|1|", **asked)
            for name, asked in READERS.items()
        }
        writer = await RawClient.connect(broker, "writer")
        for start in range(0, MESSAGES, 20):
            await writer.publish("t", [b'{"n":%08d,"x":"%s"}' % (n, BODY) for n in range(start, start + 20)])
        writer.send_command({"c": "flush", "id": "f"})
        await writer.read_until("completed")
        await until(lambda: "live" not in broker.engine.roster.clients)
        notice = next(one for one in await readers.pop("live").read_commands() if one["c"] == "notice")
        await until(lambda: broker.engine.ledger.recent)
        lost = await ask(broker, "ledger", client="live")
        assert notice["kept"] == sum(row["messages"] for row in lost) > 0
        assert not notice.get("lost") and not any(row["unjournaled"] for row in lost)
        for reader in readers.values():
            bodies = await reader.read_bodies(MESSAGES)
            assert [int(body[5:13]) for body in bodies] == list(range(MESSAGES))
        assert {one.client for one in broker.engine.decisions.recent} == {"live"}
        for entry in await ask(broker, "clients"):
            assert entry["lost_messages"] == 0, entry["name"]
        again = await RawClient.connect(broker, "live")
        again.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": notice["resume"]})
        missed = await again.deliveries(notice["kept"])
        assert [int(body[5:13]) for body in missed[: notice["kept"]]] == list(range(notice["kept"]))


async def test_no_rule_on_ages_or_on_silence_or_on_backlogs_sees_who_reads_the_log_and_stops(
    tmp_path: Path,
) -> None:
    """Messages sent to log readers lie in this host's kernel.

    For the live subscription every rule acts on the same messages.
    """
    seen = ("oldest_age", 2_000), ("write_blocked", 500), ("backlog_messages", 2), ("backlog_bytes", 2)
    rules = [
        rule("notify", limit, signal=signal, name=f"{signal}.{len(scope)}", scope=scope)
        for signal, limit in seen
        for scope in ({}, {"topic": "t"})
    ]
    presets = {
        "client_policy": {"client_max_capacity": 100, "client_message_age_limit_ms": 3_600_000},
        "activemq": [
            {
                "topic": "t",
                "abort_slow_consumer_strategy": True,
                "max_slow_duration": 300,
                "check_period": 100,
                "mode": "shadow",
            }
        ],
    }
    async with running_broker(tmp_path, policy_with(*rules, **presets)) as broker:
        readers = [
            await StalledSubscriber.connect(broker, name, "t", bookmark="0|1|", **asked)
            for name, asked in READERS.items()
        ]
        writer = await RawClient.connect(broker, "writer")
        clients, decisions = broker.engine.roster.clients, broker.engine.decisions.recent

        async def publish(number: int) -> None:
            await writer.publish("t", [b"%d %s" % (n, BODY) for n in range(number)])

        await publish(20)  # the kernels accept these
        await until(lambda: all(clients[name].backlog.silent_since for name in READERS))
        await until(lambda: ("live", "write_blocked.0") in {(one.client, one.rule) for one in decisions})
        await publish(200)  # these wait at the broker for a moment
        await until(lambda: len({one.rule for one in decisions}) == len(rules) + 1)
        assert [(one.client, one.rule) for one in decisions if one.client != "live"] == []
        assert len(readers) == len(clients) - 1
