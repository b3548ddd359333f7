"""Logons and permissions through a real broker."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_core.access import FailedLogonTracker, VerifiedPasswordCache, hash_password, hash_token
from broker_core.batch import Batch
from broker_core.client import EPOCH, AsyncClient, Message, ReconnectPolicy, Rejection, Subscription
from broker_core.config import PolicyDocument
from broker_core.connections import admission, logons
from broker_core.errors import ClientError, OperatorError
from broker_core.protocols.native import DELIVER, encode_command
from tests.broker_core.access.making import entitlement, policy, user
from tests.support.brokers import address_of, ask, running_broker, until
from tests.support.frames import FedReader
from tests.support.raw import RawClient

HASHED = hash_password("right")
PASSWORDS = policy(user("maria", password=HASHED), authentication="password", restricted=False)
QUICK = ReconnectPolicy(first_delay=0.001, longest_delay=0.02)
ONCE = ReconnectPolicy(enabled=False)


async def refusal_code(address: str, name: str = "c", **proof: Any) -> str:
    """Return the error code with which the broker refuses a logon."""
    with pytest.raises((ClientError, OperatorError)) as caught:
        await AsyncClient(address, name, reconnect=ONCE, **proof).start()
    return caught.value.code


async def take(subscription: Subscription, number: int) -> list[Message]:
    found: list[Message] = []
    async with asyncio.timeout(10):
        async for message in subscription:
            found.append(message)
            if len(found) == number:
                break
    return found


async def test_a_password_lets_in_who_knows_it_and_nobody_else(tmp_path: Path) -> None:
    async with running_broker(tmp_path, PASSWORDS) as broker:
        address = address_of(broker)
        async with AsyncClient(address, "c", user="maria", password="right") as client:
            await client.publish("a", 1)
            await client.flush()
            assert broker.engine.roster.clients["c"].user == "maria"
        for proof in (
            {"user": "maria", "password": "wrong"},
            {"user": "vera", "password": "right"},
            {"user": "maria"},
            {},
            {"token": "right"},
            {"user": "maria", "password": ""},
        ):
            assert await refusal_code(address, **proof) == "bad_logon"


async def test_what_is_sent_right_after_the_logon_waits_for_the_password_and_keeps_its_order(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, PASSWORDS) as broker:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(address_of(broker).rpartition(":")[2])
        )
        writer.write(encode_command({"c": "logon", "name": "c", "user": "maria", "password": "right"}))
        writer.write(encode_command({"c": "subscribe", "id": "s", "topic": "a"}))
        for number in range(3):
            writer.write(
                encode_command(
                    {"c": "publish", "topic": "a", "data": number, "ack": ["persisted"], "id": str(number)}
                )
            )
        frames, replies = FedReader(), list[Any]()
        async with asyncio.timeout(10):
            while len([reply for reply in replies if reply.get("ack") == "persisted"]) < 3:
                for frame in frames.feed(await reader.read(65_536)):
                    if frame.kind == 1:
                        replies.append(json.loads(frame.payload))
        assert [reply["of"] for reply in replies[:2]] == ["logon", "subscribe"]
        assert [reply["id"] for reply in replies if reply.get("of") == "publish"] == ["0", "1", "2"]
        writer.close()


async def test_the_loop_goes_on_while_passwords_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    may_end, threads = threading.Event(), set[int]()

    def slow(password: str, hashed: str) -> bool:
        threads.add(threading.get_ident())
        return may_end.wait(10) and password == "right"

    monkeypatch.setattr(logons, "verify_password", slow)
    both = replace(
        PASSWORDS,
        transports=(
            *PASSWORDS.transports,
            replace(PASSWORDS.transports[0], name="open", authentication="none"),
        ),
    )
    async with running_broker(tmp_path, both) as broker:
        password, free = (
            f"tcp://127.0.0.1:{transport['port']}" for transport in broker.statistics.transports
        )
        waiting = [
            asyncio.create_task(AsyncClient(password, f"c{n}", user="maria", password="right").start())
            for n in range(6)
        ]
        async with AsyncClient(free, "free") as client:
            await client.publish("a", 1)
            await client.flush()
        assert not any(task.done() for task in waiting)
        may_end.set()
        for started in await asyncio.gather(*waiting):
            await started.close()
        assert len(threads) <= logons.MAX_CHECKERS and threading.get_ident() not in threads


async def test_too_many_concurrent_password_checks_are_refused_with_a_retry_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logons, "MAX_WAITING", 0)
    async with running_broker(tmp_path, PASSWORDS) as broker:
        assert await refusal_code(address_of(broker), user="maria", password="right") == "too_many_logons"


async def test_a_client_in_a_password_check_is_not_evicted_and_a_known_password_needs_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    may_end, checked = threading.Event(), list[str]()

    def slow(password: str, hashed: str) -> bool:
        checked.append(password)
        return may_end.wait(30) and password == "right"

    monkeypatch.setattr(logons, "verify_password", slow)
    monkeypatch.setattr(admission, "MAX_PENDING", 3)
    async with running_broker(tmp_path, PASSWORDS) as broker:
        address, doorway = address_of(broker), broker.engine.pending_connections
        known = {"user": "maria", "password": "right"}
        waiting = [AsyncClient(address, f"c{n}", reconnect=ONCE, **known) for n in range(2)]
        starting = [asyncio.create_task(client.start()) for client in waiting]
        wrong = asyncio.create_task(refusal_code(address, "w", user="maria", password="wrong"))
        await until(
            lambda: (
                len(checked) == logons.MAX_CHECKERS
                and len(broker.engine.roster.connections) == 3
                and not doorway.pending
            )
        )
        silent = [await RawClient.open(broker) for _ in range(6)]
        for raw in silent[:3]:
            assert (await raw.read_until("closing"))["code"] == "too_many_connections"
        assert doorway.pending == 3
        may_end.set()
        await asyncio.gather(*starting)
        assert await wrong == "bad_logon"
        before = len(checked)
        async with AsyncClient(address, "again", reconnect=ONCE, **known):
            assert len(checked) == before
        for raw in silent:
            raw.close()
        for client in waiting:
            await client.close()
        await until(lambda: doorway.pending == 0)


def test_a_changed_password_is_checked_again() -> None:
    known = VerifiedPasswordCache()
    known.add("maria", "right", HASHED)
    assert known.is_verified("maria", "right", HASHED)
    other = hash_password("right")
    assert not known.is_verified("maria", "right", other) and not known.is_verified("maria", "wrong", HASHED)
    assert not known.is_verified("vera", "right", HASHED)


async def test_guesses_get_slower_and_then_have_to_wait_whatever_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[int] = []
    original = FailedLogonTracker.record_failure

    def record_failure(self: FailedLogonTracker, remote: str, user: str, now: int) -> int:
        delays.append(original(self, remote, user, now))
        return 0

    monkeypatch.setattr(FailedLogonTracker, "record_failure", record_failure)
    async with running_broker(tmp_path, PASSWORDS) as broker:
        for _ in range(10):
            assert await refusal_code(address_of(broker), user="maria", password="wrong") == "bad_logon"
        assert delays[:5] == [100, 200, 400, 800, 1_600]
        assert await refusal_code(address_of(broker), user="maria", password="right") == "too_many_attempts"


async def test_tokens(tmp_path: Path) -> None:
    async with running_broker(tmp_path, policy(user("maria"), user("vera"), restricted=False)) as broker:
        address = address_of(broker)
        async with AsyncClient(address, "c", token="maria"):
            assert broker.engine.roster.clients["c"].user == "maria"
        async with AsyncClient(address, "v", user="vera", token="vera"):
            assert broker.engine.roster.clients["v"].user == "vera"
        assert await refusal_code(address, user="vera", token="maria") == "bad_logon"
        assert await refusal_code(address, token="nobody") == "bad_logon"
        assert await refusal_code(address) == "bad_logon"


async def test_a_right_token_is_taken_although_others_at_its_address_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = FailedLogonTracker.record_failure

    def record_failure(self: FailedLogonTracker, remote: str, user: str, now: int) -> int:
        original(self, remote, user, now)
        return 0

    monkeypatch.setattr(FailedLogonTracker, "record_failure", record_failure)
    async with running_broker(tmp_path, policy(user("maria"), restricted=False)) as broker:
        address = address_of(broker)
        for _ in range(10):
            assert await refusal_code(address, token="guessed") == "bad_logon"
        assert await refusal_code(address, token="guessed") == "too_many_attempts"
        async with AsyncClient(address, "c", token="maria", reconnect=ONCE):
            assert broker.engine.roster.clients["c"].user == "maria"


async def test_another_users_client_is_not_replaced(tmp_path: Path) -> None:
    made = policy(user("maria"), user("vera"), user("kept", clients=("kept-*",)), restricted=False)
    async with running_broker(tmp_path, made) as broker:
        address = address_of(broker)
        async with AsyncClient(address, "screen", token="maria", reconnect=ONCE) as first:
            assert await refusal_code(address, "screen", token="vera") == "name_taken"
            await first.publish("a", 1)
            await first.flush()
            async with AsyncClient(address, "screen", token="maria"):
                await until(lambda: not first.connected)
        assert await refusal_code(address, "screen", token="kept") == "bad_client_name"
        async with AsyncClient(address, "kept-1", token="kept"):
            pass


async def test_a_name_stays_its_users_with_its_numbers_and_durables_when_that_is_away(tmp_path: Path) -> None:
    made = policy(user("maria"), user("vera"), restricted=False)
    async with running_broker(tmp_path, made) as broker:
        async with AsyncClient(address_of(broker), "feed", token="maria", reconnect=ONCE) as client:
            await client.publish_many("a", [b"1", b"2"])
            await client.flush()
        assert await refusal_code(address_of(broker), "feed", token="vera") == "name_taken"
    async with running_broker(tmp_path, made) as broker:
        assert await refusal_code(address_of(broker), "feed", token="vera") == "name_taken", (
            "also after a restart"
        )
        async with AsyncClient(address_of(broker), "feed", token="maria", reconnect=ONCE) as client:
            await client.publish_many("a", [b"3"])
            await client.flush()
        assert broker.engine.dispatch.publisher_sequence("feed") == 3
        without = replace(policy(user("vera"), restricted=False), revision=2)
        await broker.apply(replace(made, access=without.access, revision=2))
        async with AsyncClient(address_of(broker), "feed", token="vera", reconnect=ONCE):
            assert broker.engine.owners.owner_of("feed") == "vera", "there is no maria any more"


async def test_forbidden_publishes_are_refused_and_others_are_stored(tmp_path: Path) -> None:
    made = policy(user("maria"), entitlement("maria", publish="orders.*", subscribe=">"))
    async with running_broker(tmp_path, made) as broker:
        rejections: list[Rejection] = []
        async with AsyncClient(
            address_of(broker), "c", token="maria", on_rejection=rejections.append
        ) as client:
            subscription = await client.subscribe(">", bookmark=EPOCH)
            await client.publish_many("orders.eu", [1, 2])
            await asyncio.sleep(0)
            await client.publish("quotes.eu", 3)
            await asyncio.sleep(0)
            await client.publish("orders.us", 4)
            with pytest.raises(ClientError) as caught:
                await client.flush()
            assert (caught.value.code, caught.value.details) == ("not_entitled", {"topic": "quotes.eu"})
            assert [(rejection.first, rejection.last) for rejection in rejections] == [(3, 3)]
            await client.flush()
            assert [message.data for message in await take(subscription, 3)] == [1, 2, 4]
            assert client.unacknowledged_bytes == 0


async def test_live_and_replayed_a_subscription_gets_what_it_is_entitled_to_and_hears_that_it_was_narrowed(
    tmp_path: Path,
) -> None:
    made = policy(
        user("feed"),
        user("maria"),
        entitlement("feed", publish=">"),
        entitlement("maria", subscribe="orders.>", filter="/region = 'eu'"),
    )
    async with running_broker(tmp_path, made) as broker:
        address = address_of(broker)

        async def publish(number: int) -> None:
            async with AsyncClient(address, "feed", token="feed") as feed:
                for topic in ("orders.a", "quotes.a"):
                    await feed.publish_many(
                        topic, [{"n": number, "region": region} for region in ("eu", "us")]
                    )
                await feed.flush()

        await publish(1)
        async with AsyncClient(address, "maria", token="maria") as client:
            replayed = await client.subscribe(">", bookmark=EPOCH)
            live = await client.subscribe("orders.a", filter="/n > 1")
            await publish(2)
            seen = [(m.topic, m.data["n"], m.data["region"]) for m in await take(replayed, 2)]
            assert seen == [("orders.a", 1, "eu"), ("orders.a", 2, "eu")]
            assert [(m.data["n"], m.data["region"]) for m in await take(live, 1)] == [(2, "eu")]
            assert [notice.code for notice in client.notices] == ["narrowed"]
            for topic in ("quotes.>", "$SLUICE.>", "quotes.a"):
                with pytest.raises(ClientError) as caught:
                    await client.subscribe(topic)
                assert caught.value.code == "not_entitled"


async def test_a_snapshot_and_a_durable_subscription_show_no_more_than_others(tmp_path: Path) -> None:
    made = policy(
        user("feed"),
        user("maria"),
        entitlement("feed", publish=">"),
        entitlement("maria", subscribe="orders.>", filter="/region = 'eu'"),
    )
    async with running_broker(tmp_path, made) as broker:
        address = address_of(broker)
        async with AsyncClient(address, "feed", token="feed") as feed:
            for topic in ("orders.a", "quotes.a"):
                await feed.publish_many(
                    topic, [{"k": number, "region": region} for number, region in enumerate(("eu", "us"))]
                )
            await feed.flush()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        writer.write(encode_command({"c": "logon", "name": "m", "token": "maria"}))
        writer.write(encode_command({"c": "subscribe", "id": "s", "topic": ">", "snapshot_key": "/k"}))
        writer.write(
            encode_command({"c": "subscribe", "id": "d", "topic": ">", "durable": "d", "bookmark": "0"})
        )
        writer.write(encode_command({"c": "subscribe", "id": "x", "topic": "quotes.a", "durable": "x"}))
        frames, bodies, refused = FedReader(), list[bytes](), list[str]()
        async with asyncio.timeout(10):
            while len(bodies) < 2 or not refused:
                for frame in frames.feed(await reader.read(65_536)):
                    if frame.kind == DELIVER:
                        bodies += Batch.parse(frame.payload).bodies()
                    elif json.loads(frame.payload)["c"] == "error":
                        refused.append(json.loads(frame.payload)["code"])
        await until(
            lambda: (
                not any(
                    target.cursor.is_behind
                    for target in broker.engine.roster.clients["m"].subscriptions.values()
                )
            )
        )
        writer.close()
        assert bodies == [b'{"k":0,"region":"eu"}'] * 2
        assert refused == ["not_entitled"]
        assert [durable.name for durable in broker.engine.durables.list_entries()] == ["d"]


async def test_a_revision_closes_whom_it_gives_other_rights_and_nobody_else(tmp_path: Path) -> None:
    before = policy(user("maria"), user("vera"), entitlement("*", publish="a"))
    async with running_broker(tmp_path, before) as broker:
        address = address_of(broker)

        async def apply(made: PolicyDocument) -> None:
            port = broker.statistics.transports[0]["port"]
            kept = replace(
                made,
                revision=before.revision + 1,
                instance=broker.engine.policy.instance,
                transports=tuple(replace(t, port=0) for t in made.transports),
            )
            assert port
            await ask(broker, "apply", policy=kept.to_dict())

        async with (
            AsyncClient(address, "m", token="maria", reconnect=QUICK) as maria,
            AsyncClient(address, "v", token="vera", reconnect=QUICK) as vera,
        ):
            await apply(
                policy(
                    user("maria"),
                    user("vera"),
                    entitlement("*", publish="a"),
                    entitlement("maria", publish="b"),
                )
            )
            await until(lambda: maria.connections == 2 and maria.connected)
            await maria.publish("b", 1)
            await maria.flush()
            assert vera.connections == 1
            await apply(
                policy(
                    user("maria"),
                    user("vera", token=hash_token("another")),
                    entitlement("*", publish="a"),
                    entitlement("maria", publish="b"),
                )
            )
            with pytest.raises(ClientError):
                async with asyncio.timeout(10):
                    while True:
                        await vera.publish("a", 1)
                        await vera.flush()
            assert maria.connections == 2
            with pytest.raises(OperatorError, match="unsent_messages"):
                await vera.close()


async def test_a_revision_whose_access_is_wrong_changes_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path, policy(user("maria"), restricted=False)) as broker:
        wrong = policy(user("maria"), entitlement("*", publish="a*b"))
        with pytest.raises(AssertionError, match="bad_policy"):
            await ask(broker, "apply", policy=replace(wrong, revision=7).to_dict())
        assert broker.engine.policy.revision == 1
        async with AsyncClient(address_of(broker), "c", token="maria") as client:
            await client.publish("anything", 1)
            await client.flush()
