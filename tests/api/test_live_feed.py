from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client

from api.live_feed import LiveFeed
from api.snapshot_delta import apply_delta
from broker_core.documents.instance import InstanceStatus, Snapshot
from broker_core.documents.system_records import DecisionEntry
from console.choices import Role
from console.live import latest_snapshot
from console.models import Grant
from console.project.asgi import application
from console.reporters.snapshot_reporter import SnapshotEncoder, SnapshotReporter
from console.services import policies
from tests.support.brokers import running_broker, tcp_policy
from tests.support.control_plane import person
from tests.support.fake_broker import FakeBroker, make_client
from tests.support.raw import RawClient

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]


@pytest.fixture
def broker() -> Any:
    instance = policies.ensure_instance(settings.SLUICE_INSTANCE)
    with FakeBroker(Path(settings.SLUICE_RUN_DIRECTORY) / f"{instance.name}.sock", instance.name) as fake:
        fake.clients = [make_client("one"), make_client("two", "offlined", 50)]
        yield fake


@pytest.fixture
def cookie() -> str:
    """Return the session cookie of a logged-on viewer."""
    return cookie_of(person("vera", Role.VIEWER))


def cookie_of(user: Any) -> str:
    client = Client()
    client.force_login(user)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


def headers(cookie: str = "", origin: str = "http://console.test:8000") -> list[tuple[bytes, bytes]]:
    return [
        (b"host", b"console.test:8000"),
        (b"origin", origin.encode()),
        (b"cookie", f"{settings.SESSION_COOKIE_NAME}={cookie}".encode()),
    ]


@asynccontextmanager
async def feed(cookie: str, query: str = "") -> AsyncIterator[WebsocketCommunicator]:
    communicator = WebsocketCommunicator(application, f"/live/{query}", headers(cookie))
    connected, _ = await communicator.connect()
    assert connected
    yield communicator
    await communicator.disconnect()


async def push(snapshot: dict[str, Any]) -> None:
    told = {"type": "live.snapshot", "snapshot": msgspec.json.encode(snapshot)}
    await get_channel_layer().group_send("live", told)


async def decide(client: str, instance: str = settings.SLUICE_INSTANCE) -> None:
    decision = msgspec.json.encode(DecisionEntry(at=1, client=client, action="offline"))
    await get_channel_layer().group_send(
        "live", {"type": "live.decision", "instance": instance, "decision": decision}
    )


async def test_snapshot_comes_first_and_deltas_make_the_broker_s_next_one(
    broker: FakeBroker, cookie: str
) -> None:
    async with feed(cookie) as socket:
        first = await socket.receive_json_from(timeout=5)
        assert (first["type"], first["seq"], len(first["clients"])) == ("snapshot", 1, 2)
        held = {"at": first["at"], "status": first["status"], "clients": first["clients"]}
        for seq in (2, 3):
            held["clients"] = sorted(held["clients"], key=lambda one: one["name"])
            new = copy.deepcopy(held)
            new["at"] += 1000
            new["clients"][1]["lag_messages"] += 7
            await push(new)
            change = await socket.receive_json_from(timeout=5)
            assert (change["type"], change["seq"]) == ("delta", seq)
            assert change["changed"] == [{"name": "two", "lag_messages": new["clients"][1]["lag_messages"]}]
            held = apply_delta(held, change)
            assert held == new


async def test_a_large_snapshot_waits_in_redis_for_whoever_is_told_of_it(
    broker: FakeBroker, cookie: str
) -> None:
    with redis.Redis.from_url(settings.REDIS_URL) as link:
        async with feed(cookie) as socket:
            first = await socket.receive_json_from(timeout=5)
            at = first["at"] + 1_000
            crowd = [make_client(f"crowd-{number:04d}", lag=number) for number in range(400)]
            snapshot = msgspec.structs.replace(broker.snapshot(), at=at, clients=crowd)
            written = SnapshotEncoder()
            for _ in range(2):  # the second snapshot has equal entries
                told = await written.encode(snapshot)
            assert len(told) > latest_snapshot.INLINE
            assert msgspec.json.decode(told, type=Snapshot) == msgspec.structs.replace(snapshot, replays=None)
            latest_snapshot.write_snapshot(settings.SLUICE_INSTANCE, told, link)
            word = {"type": "live.snapshot", "broker": settings.SLUICE_INSTANCE, "at": at}
            await get_channel_layer().group_send("live", word)
            change = await socket.receive_json_from(timeout=5)
            assert (change["at"], len(change["changed"]), change["removed"]) == (at, 400, ["one", "two"])
        async with feed(cookie, "?view=clients&limit=1&sort=-lag_messages") as socket:
            # A new tab receives the stored snapshot; the console does not request all clients from the broker
            # again.
            held = await socket.receive_json_from(timeout=5)
            assert (held["at"], held["total"], held["order"]) == (at, 400, ["crowd-0399"])
        link.flushdb()


async def test_many_snapshots_at_once_become_at_most_four_a_second(broker: FakeBroker, cookie: str) -> None:
    async with feed(cookie) as socket:
        first = await socket.receive_json_from(timeout=5)
        for number in range(1, 21):
            await push({"at": first["at"] + number, "status": first["status"], "clients": first["clients"]})
        change = await socket.receive_json_from(timeout=5)
        while change["at"] != first["at"] + 20:
            change = await socket.receive_json_from(timeout=5)
        assert change["seq"] <= 4


async def test_decision_comes_at_once_and_in_sequence(broker: FakeBroker, cookie: str) -> None:
    async with feed(cookie) as socket:
        await socket.receive_json_from(timeout=5)
        await decide("two")
        told = await socket.receive_json_from(timeout=5)
        assert (told["type"], told["seq"], told["decision"]["client"]) == ("decision", 2, "two")


async def test_page_may_ask_for_a_whole_snapshot_again(broker: FakeBroker, cookie: str) -> None:
    async with feed(cookie) as socket:
        await socket.receive_json_from(timeout=5)
        await socket.send_to(text_data="snapshot")
        again = await socket.receive_json_from(timeout=5)
        assert (again["type"], again["seq"]) == ("snapshot", 2)


async def test_tab_that_says_what_it_looks_at_gets_that_alone(broker: FakeBroker, cookie: str) -> None:
    async with feed(cookie, "?view=clients&limit=1&sort=name") as socket:
        first = await socket.receive_json_from(timeout=5)
        assert (first["order"], first["total"], first["totals"]["clients"]) == (["one"], 2, 2)
        await socket.send_to(text_data='{"view": "client", "client": "two"}')
        again = await socket.receive_json_from(timeout=5)
        assert (again["type"], again["seq"], again["order"]) == ("snapshot", 2, ["two"])
        await push(
            {"at": first["at"] + 1000, "status": first["status"], "clients": [make_client("two", "live", 3)]}
        )
        change = await socket.receive_json_from(timeout=5)
        assert (change["type"], change["seq"], change["changed"][0]["lag_messages"]) == ("delta", 3, 3)
        await socket.send_to(text_data='{"view": "nonsense"}')
        assert await socket.receive_nothing(timeout=0.3)


async def test_scoped_viewer_s_window_and_totals_are_of_the_clients_in_scope(
    broker: FakeBroker, scoped: str
) -> None:
    async with feed(scoped, "?view=clients") as socket:
        first = await socket.receive_json_from(timeout=5)
        assert (first["order"], first["totals"]["clients"]) == (["one"], 1)


async def test_feed_without_a_broker_begins_when_it_comes(cookie: str) -> None:
    await database_sync_to_async(policies.ensure_instance)(settings.SLUICE_INSTANCE)
    async with feed(cookie) as socket:
        assert await socket.receive_nothing(timeout=0.2)
        await push({"at": 1, "status": {"instance": "sluice-1"}, "clients": []})
        assert (await socket.receive_json_from(timeout=5))["type"] == "snapshot"


async def test_stranger_is_refused_with_a_code(broker: FakeBroker) -> None:
    communicator = WebsocketCommunicator(application, "/live/", headers("nonsense"))
    await communicator.connect()
    assert (await communicator.receive_output(timeout=5))["code"] == 4401


@pytest.mark.parametrize("origin", ["http://evil.test", "http://console.test:9999", "null", ""])
async def test_page_of_another_site_is_refused_though_logged_in(
    broker: FakeBroker, cookie: str, origin: str
) -> None:
    communicator = WebsocketCommunicator(application, "/live/", headers(cookie, origin))
    connected, _ = await communicator.connect()
    assert not connected


async def test_session_that_ended_is_fed_no_longer(
    broker: FakeBroker, cookie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.live_feed.SESSION_CHECK_S", 0.1)
    async with feed(cookie) as socket:
        await socket.receive_json_from(timeout=5)
        user = await get_user_model().objects.aget(username="vera")
        user.is_active = False
        await user.asave()
        assert (await socket.receive_output(timeout=5))["code"] == 4401


async def test_feed_doesn_t_keep_a_session_alive_that_nobody_uses(
    broker: FakeBroker, cookie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.live_feed.SESSION_CHECK_S", 0.1)
    moment = time.time()
    monkeypatch.setattr("console.web.session_store.time.time", lambda: moment)
    async with feed(cookie) as socket:
        first = await socket.receive_json_from(timeout=5)
        moment += settings.SLUICE_SESSION_IDLE_MINUTES * 60 - 5
        await push({**first, "at": first["at"] + 1000})
        assert (await socket.receive_json_from(timeout=5))["type"] == "delta"
        moment += 10
        assert (await socket.receive_output(timeout=5))["code"] == 4401
    late = WebsocketCommunicator(application, "/live/", headers(cookie))
    await late.connect()
    assert (await late.receive_output(timeout=5))["code"] == 4401


async def test_idle_socket_outlives_the_time_out_of_redis_py(broker: FakeBroker, cookie: str) -> None:
    """redis-py 8 gives sockets a timeout of 5 s, which ends the default channel layer."""
    async with feed(cookie) as socket:
        first = await socket.receive_json_from(timeout=5)
        await asyncio.sleep(6.5)
        await push({"at": first["at"] + 1000, "status": first["status"], "clients": []})
        assert (await socket.receive_json_from(timeout=5))["removed"] == ["one", "two"]


@pytest.fixture
def scoped() -> str:
    """Return the session cookie of a viewer whose scope includes one of the two clients."""
    return cookie_of(person("sam", Role.VIEWER, client_pattern="on*"))


async def test_scoped_viewer_is_told_of_the_clients_in_scope_alone(broker: FakeBroker, scoped: str) -> None:
    async with feed(scoped) as socket:
        first = await socket.receive_json_from(timeout=5)
        assert [one["name"] for one in first["clients"]] == ["one"]
        for name in ("two", "one"):
            await decide(name, broker.instance)
        assert (await socket.receive_json_from(timeout=5))["decision"]["client"] == "one"
        await push(
            {
                "at": first["at"] + 1000,
                "status": first["status"],
                "clients": [*broker.clients, make_client("only")],
            }
        )
        change = await socket.receive_json_from(timeout=5)
        assert [one["name"] for one in change["changed"]] == ["only"]


async def test_viewer_of_another_instance_is_told_nothing(broker: FakeBroker, scoped: str) -> None:
    await Grant.objects.all().adelete()
    async with feed(scoped) as socket:
        await push({"at": 2**50, "status": {"instance": broker.instance}, "clients": []})
        assert await socket.receive_nothing(timeout=0.5)


async def test_what_a_broker_s_reporter_tells_is_what_the_feed_takes(cookie: str, tmp_path: Path) -> None:
    named = replace(tcp_policy(), instance=replace(tcp_policy().instance, name=settings.SLUICE_INSTANCE))
    await database_sync_to_async(policies.ensure_instance)(settings.SLUICE_INSTANCE)
    async with running_broker(tmp_path, named) as broker, feed(cookie) as socket:
        raw = await RawClient.connect(broker, "board")
        reporter = SnapshotReporter(broker)
        while await socket.receive_nothing(
            timeout=0.2
        ):  # the socket joins the group shortly after it is accepted
            await reporter.report(broker.statistics.collect_snapshot())
        first = await socket.receive_json_from(timeout=5)
        assert (first["type"], [one["name"] for one in first["clients"]]) == ("snapshot", ["board"])
        assert msgspec.convert(first["status"], InstanceStatus).instance == settings.SLUICE_INSTANCE
        assert "replays" not in first, "replays are hidden, because accounts may be limited to some clients"
        await reporter.close()
        raw.close()


async def test_a_socket_describes_the_instance_in_its_address_to_those_who_may_view_it(
    broker: FakeBroker,
) -> None:
    prices = await database_sync_to_async(policies.ensure_instance)("prices")
    with FakeBroker(Path(settings.SLUICE_RUN_DIRECTORY) / "prices.sock", "prices") as other:
        petra = await database_sync_to_async(person)("petra", Role.VIEWER, instance=prices)
        cookie = await database_sync_to_async(cookie_of)(petra)
        for query in ("?view=totals", "?view=totals&instance=sluice-1", "?instance=sluice-1"):
            async with feed(cookie, query) as socket:
                await push({"at": 2**50, "status": {"instance": broker.instance}, "clients": []})
                assert await socket.receive_nothing(timeout=0.5), query
        async with feed(cookie, "?view=clients&instance=prices") as socket:
            first = await socket.receive_json_from(timeout=5)
            assert (first["status"]["instance"], first["total"]) == ("prices", len(other.clients))


async def test_a_withdrawn_grant_ends_snapshots_on_request_too(
    broker: FakeBroker, cookie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = asyncio.Event()
    monkeypatch.setattr("api.live_feed.SESSION_CHECK_S", 0.1)
    async with feed(cookie, "?view=totals") as socket:
        await socket.receive_json_from(timeout=5)
        await Grant.objects.all().adelete()
        still = LiveFeed._check_session

        async def check(self: LiveFeed) -> bool:
            found = await still(self)
            checked.set()
            return found

        monkeypatch.setattr(LiveFeed, "_check_session", check)
        await asyncio.wait_for(checked.wait(), 20)
        await socket.send_to(text_data="snapshot")
        assert await socket.receive_nothing(timeout=0.5)
