"""Managed replays through a real broker: they outlive client and broker, and operators control them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker_core.broker import Broker
from broker_core.journal.files import FileSystem
from broker_core.replay import client_subscription
from broker_core.replay.positions.file import ManagedReplayRecord, load_positions
from tests.broker_core.journal.support import FailingFiles
from tests.support.brokers import ask, running_broker, until
from tests.support.fake_broker import some_replays
from tests.support.raw import RawClient
from tests.support.recording_client import RecordingClient
from tests.support.stalled import StalledSubscriber


async def fill_log(broker: Broker, number: int = 600) -> RawClient:
    writer = await RawClient.connect(broker, "writer")
    for first in range(0, number, 20):
        await writer.publish("a", [b'{"n":%d}' % n for n in range(first, first + 20)])
    await until(lambda: broker.engine.frontier.durable >= number)
    return writer


async def shown(broker: Broker, name: str = "nightly") -> dict[str, Any]:
    (found,) = [one for one in await ask(broker, "replays") if one["name"] == name]
    return found  # type: ignore[no-any-return]


async def subscribe(reader: RecordingClient, **options: Any) -> list[dict[str, Any]]:
    return await reader.request(
        **{"c": "subscribe", "id": "s", "topic": "a", "bookmark": "0", "managed": "nightly", **options}
    )


async def test_it_survives_its_client_and_the_broker_and_goes_on_where_it_was(tmp_path: Path) -> None:
    got: list[int] = []
    async with running_broker(tmp_path) as broker:
        await fill_log(broker)
        reader = await RecordingClient.connect(broker)
        await subscribe(reader, rate="1000")
        await until(lambda: len(reader.deliveries) > 50)
        reader.raw.close()
        await until(lambda: "reader" not in broker.engine.roster.clients)
        await asyncio.sleep(0.05)
        got += reader.sequences_of()
        now = await shown(broker)
        assert (now["state"], now["connected"], now["client"]) == ("waiting", False, "reader")
        assert 0 < now["progress"] < 1
        assert any("managed replay nightly" in one["pinned_by"] for one in await ask(broker, "journals"))
    async with running_broker(tmp_path) as broker:
        assert (await shown(broker))["position"] == now["position"]
        plan = await ask(broker, "journal_plan", action="remove", age_s=0)
        assert not plan["chosen"]
        reader = await RecordingClient.connect(broker)
        # With the bookmark of what it has, nothing is lost or repeated, whatever was on its way.
        await subscribe(reader, received=f"test-1|{got[-1]}|")
        assert (await shown(broker))["rate"] == "1000"
        await reader.request(c="rate", ids=["s"])
        await until(lambda: len(got) + len(reader.deliveries) >= 600)
        assert got + reader.sequences_of() == list(range(1, 601))
        await until(lambda: reader.completed_ids() == ["s"])
        broker.engine.tick()
        assert [(await shown(broker))[key] for key in ("state", "progress", "rate")] == [
            "following",
            1.0,
            None,
        ]
        reader.close()


async def test_what_a_client_had_not_read_when_it_died_comes_again(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        writer = await RawClient.connect(broker, "writer")
        for first in range(0, 3_000, 20):
            await writer.publish("a", [b"%08d" % n + b"x" * 1_000 for n in range(first, first + 20)])
        await until(lambda: broker.engine.frontier.durable >= 3_000)
        first = await StalledSubscriber.connect(broker, "reader", "a", bookmark="0", managed="nightly")
        client = broker.engine.roster.clients["reader"]
        await until(
            lambda: client.subscriptions["s"].cursor.next_sequence > 100 and not client.backlog.is_drained, 60
        )
        broker.engine.tick()
        assert (await shown(broker))["position"] != "test-1|0|", "the kernels took it"
        first._socket.close()
        await until(lambda: "reader" not in broker.engine.roster.clients)
        second = await RecordingClient.connect(broker)
        await subscribe(second)
        await until(lambda: len(second.deliveries) >= 3_000, 60)
        assert second.sequences_of() == list(range(1, 3_001))
        second.close()


async def test_without_the_bookmark_of_its_client_what_was_sent_last_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_subscription, "BUFFER_BYTES", 2_000)
    monkeypatch.setattr(client_subscription, "GRAIN_BYTES", 500)
    async with running_broker(tmp_path) as broker:
        await fill_log(broker)
        first = await RecordingClient.connect(broker)
        await subscribe(first, rate="500")
        await until(lambda: len(first.deliveries) > 250, 60)
        await first.request(c="pause", ids=["s"])
        first.raw.close()
        await until(lambda: "reader" not in broker.engine.roster.clients)
        now = await shown(broker)
        assert now["state"] == "paused"
        replay = broker.engine.managed.get("nightly")
        assert 0 < replay.expires_from < replay.position
        second = await RecordingClient.connect(broker)
        await subscribe(second)
        await second.request(c="rate", ids=["s"])
        assert second.deliveries == [], "it is still paused"
        await second.request(c="resume", ids=["s"])
        await until(lambda: second.deliveries and second.deliveries[-1][1] == 600)
        assert 1 < second.sequences_of()[0] <= first.sequences_of()[-1] + 1
        assert sorted({*first.sequences_of(), *second.sequences_of()}) == list(range(1, 601))
        second.close()


async def test_with_acknowledgements_it_goes_on_after_what_was_acknowledged(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await fill_log(broker)
        first = await RecordingClient.connect(broker)
        await subscribe(first, ack="client", prefetch=100)
        await until(lambda: len(first.deliveries) >= 100)
        first.raw.send_command({"c": "ack", "id": "s", "upto": 40})
        await until(lambda: len(first.deliveries) >= 120)
        first.raw.close()
        await until(lambda: "reader" not in broker.engine.roster.clients)
        assert (await shown(broker))["position"] == "test-1|40|"
        second = await RecordingClient.connect(broker)
        await subscribe(second)
        await until(lambda: len(second.deliveries) >= 560)
        assert second.sequences_of() == list(range(41, 601))
        second.close()


async def test_an_operator_makes_pauses_resumes_re_rates_and_cancels_one(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await fill_log(broker)
        made = await ask(
            broker, "replay_create", name="nightly", client="reader", topic="a", bookmark="0", rate="200"
        )
        assert (made["state"], made["behind"], made["progress"]) == ("waiting", 600, 0.0)
        reader = await RecordingClient.connect(broker)
        await subscribe(reader)
        await until(lambda: len(reader.deliveries) > 5)
        assert (await ask(broker, "replay_pause", name="nightly"))["state"] == "paused"
        await asyncio.sleep(0.03)
        at = len(reader.deliveries)
        await asyncio.sleep(0.1)
        assert len(reader.deliveries) == at
        assert (await ask(broker, "replay_rate", name="nightly", rate="400"))["rate"] == "400"
        assert (await ask(broker, "replay_resume", name="nightly"))["state"] == "running"
        await until(lambda: len(reader.deliveries) > at + 20)
        broker.engine.tick()
        running = await shown(broker)
        assert running["left_s"] is not None and running["left_s"] > 0
        assert (await ask(broker, "replay_cancel", name="nightly"))["state"] == "cancelled"
        await until(lambda: any(one.get("code") == "replay_cancelled" for one in reader.replies))
        assert "s" not in broker.engine.roster.clients["reader"].subscriptions
        assert not any(one["pinned_by"] for one in await ask(broker, "journals"))
        (refused,) = await subscribe(reader)
        assert refused["code"] == "replay_cancelled"
        await ask(broker, "replay_forget", name="nightly")
        assert await ask(broker, "replays") == []
        reader.close()


async def test_removing_journals_says_which_managed_replay_needs_them(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await ask(broker, "replay_create", name="nightly", client="reader", topic="a")
        writer = await RawClient.connect(broker, "writer")
        for _ in range(40):
            await writer.publish("a", [b"x" * 1_000] * 100)
        await until(lambda: broker.engine.frontier.durable >= 4_000)
        await until(lambda: broker.engine.journal.segments()[0].state == "sealed")
        plan = await ask(broker, "journal_plan", action="remove", age_s=0)
        assert plan["chosen"] == []
        assert plan["skipped"][0]["why"] == "needed by managed replay nightly"
        await ask(broker, "replay_cancel", name="nightly")
        assert (await ask(broker, "journal_plan", action="remove", age_s=0))["chosen"]


async def test_the_console_s_fake_broker_shows_what_a_broker_shows(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await ask(broker, "replay_create", name="nightly", client="reader", topic="a")
        fields = set(await shown(broker))
        assert all(set(one) == fields for one in some_replays())


async def test_one_with_an_end_is_completed_there(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await fill_log(broker)
        reader = await RecordingClient.connect(broker)
        await subscribe(reader, bookmark="[test-1|101|:test-1|200|]")
        await until(lambda: reader.completed_ids() == ["s"])
        assert reader.sequences_of() == list(range(101, 201))
        done = await shown(broker)
        assert (done["state"], done["progress"], done["delivered_messages"]) == ("completed", 1.0, 100)
        await until(lambda: not broker.engine.journal.pins())  # when it is on disk that it has ended
        reader.close()


async def test_only_the_client_it_is_for_may_have_it_and_once_at_a_time(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        reader, other = await RecordingClient.connect(broker), await RecordingClient.connect(broker, "other")
        await subscribe(reader)
        assert [one["code"] for one in await subscribe(other)] == ["replay_of_another"]
        assert [one["code"] for one in await subscribe(reader, id="again")] == ["replay_in_use"]
        reader.raw.send_command({"c": "unsubscribe", "id": "s"})
        await until(lambda: not broker.engine.roster.clients["reader"].subscriptions)
        assert [one["code"] for one in await subscribe(reader, topic="b")] == ["replay_differs"]
        assert (await subscribe(reader))[0]["ack"] == "processed"
        reader.close()
        other.close()


@pytest.mark.parametrize(
    ("do", "fields", "code"),
    [
        ("replay_pause", {"name": "nobody"}, "unknown_replay"),
        ("replay_forget", {"name": "nightly"}, "replay_not_ended"),
        ("replay_rate", {"name": "nightly", "rate": "fast"}, "bad_rate"),
        ("replay_create", {"name": "nightly", "client": "reader", "topic": "a"}, "replay_exists"),
        ("replay_create", {"name": "x y", "client": "reader", "topic": "a"}, "bad_command"),
        ("replay_create", {"name": "x", "client": "reader", "topic": "scratch.a"}, "not_journaled"),
        (
            "replay_create",
            {"name": "x", "client": "reader", "topic": "a", "bookmark": "soon"},
            "bad_bookmark",
        ),
        ("replay_create", {"name": "x", "client": "reader", "topic": "a", "rate": "0"}, "bad_rate"),
        ("replay_create", {"name": "x", "client": "bad/name", "topic": "a"}, "bad_client_name"),
    ],
)
async def test_what_an_operator_cannot_have_is_refused_by_name(
    tmp_path: Path, do: str, fields: dict[str, Any], code: str
) -> None:
    async with running_broker(tmp_path) as broker:
        await ask(broker, "replay_create", name="nightly", client="reader", topic="a")
        with pytest.raises(AssertionError, match=f"'code': '{code}'"):
            await ask(broker, do, **fields)


async def test_a_file_that_cannot_be_read_stops_the_start_and_says_what_to_do(tmp_path: Path) -> None:
    from broker_core.errors import OperatorError

    async with running_broker(tmp_path) as broker:
        await ask(broker, "replay_create", name="nightly", client="reader", topic="a")
    path = tmp_path / "journal" / "test-1.kept.json"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(OperatorError) as refused:
        async with running_broker(tmp_path):
            pass
    assert refused.value.code == "bad_kept_positions"


async def test_one_that_cannot_be_stored_is_refused_and_is_none_whoever_asks(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await fill_log(broker, 20)
        files = broker.engine.position_store._files = FailingFiles()
        files.fail = lambda name: name == "pwritev"
        reader = await RecordingClient.connect(broker)
        assert [one["code"] for one in await subscribe(reader)] == ["not_kept"]
        with pytest.raises(AssertionError, match="'code': 'not_kept'"):
            await ask(broker, "replay_create", name="nightly", client="reader", topic="a")
        assert await ask(broker, "replays") == []
        assert not broker.engine.journal.pins()
        files.fail = lambda name: False
        # What was asked for and refused isn't what another makes under that name.
        await ask(broker, "replay_create", name="nightly", client="reader", topic="a", bookmark="test-1|10|")
        assert [one["ack"] for one in await subscribe(reader)] == ["processed"]
        await until(lambda: reader.completed_ids() == ["s"])
        assert reader.sequences_of(stream=2)[0] == 11
        reader.close()


async def test_what_its_client_was_answered_is_on_the_disk(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await fill_log(broker, 20)
        reader = await RecordingClient.connect(broker)
        await subscribe(reader, paused=True)
        # As it stands at this moment, not after the next second: as a crash would leave it.
        (kept,) = load_positions(FileSystem(), tmp_path / "journal" / "test-1.kept.json")
        assert isinstance(kept, ManagedReplayRecord)
        assert (kept.name, kept.client, kept.position) == ("nightly", "reader", 1)
        reader.close()


async def test_the_creator_of_a_replay_gets_its_initial_gap(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        writer = await RawClient.connect(broker, "writer")
        for _ in range(8):
            await writer.publish("a", [b"x" * 1_000] * 500)
        await until(lambda: broker.engine.frontier.durable >= 4_000)
        await asyncio.to_thread(broker.engine.journal.preallocate)
        plan = await ask(broker, "journal_plan", action="remove", age_s=0)
        receipt = await ask(broker, "journal_remove", names=plan["chosen"][:1], age_s=0)
        raw = await RawClient.connect(broker, "reader")
        raw.send_command(
            {"c": "subscribe", "id": "s", "topic": "a", "bookmark": "test-1|1|", "managed": "nightly"}
        )
        gap = await raw.read_until("gap")
        assert (gap["from"], gap["to"]) == ("test-1|2|", f"test-1|{receipt['last_sequence']}|")


async def test_a_subscription_to_a_recreated_replay_moves_only_its_own_position(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker:
        writer = await fill_log(broker)
        reader = await RecordingClient.connect(broker)
        await subscribe(reader)
        await until(lambda: broker.engine.managed.get("nightly").position > 600)
        kept = broker.engine.position_store
        former = kept.replays["nightly"]
        kept.remove(former, publish=False)
        made = msgspec.structs.replace(former, position=1, certain=0, created_at=former.created_at + 1)
        kept.add_replicated(made)
        broker.engine.managed.record_positions()
        reader.close()
        await until(lambda: not [one for one in broker.engine.roster.clients if one != "writer"])
        assert broker.engine.managed.get("nightly") is made and made.position == 1
        writer.close()
