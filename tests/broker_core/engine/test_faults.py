"""Faults and hostile peers: a full disk, connections without logon, unread replies, removed records."""

from __future__ import annotations

import asyncio
import errno
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from broker_core.batch import Batch
from broker_core.client import AsyncClient
from broker_core.control import exit_report
from broker_core.engine.engine import LOGON_TIMEOUT_MS, TICK_MS
from tests.broker_core.test_broker import numbered_bodies, take
from tests.support.brokers import address_of, ask, running_broker, until
from tests.support.raw import RawClient


async def test_a_full_disk_refuses_publishers_lets_subscribers_go_on_and_recovers_with_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as broker:
        async with (
            AsyncClient(address_of(broker), "reader") as reader,
            AsyncClient(address_of(broker), "writer") as writer,
        ):
            subscription = await reader.subscribe("a", bookmark="0")
            await writer.publish_many("a", numbered_bodies(0, 10))
            await writer.flush()
            files = broker.engine.journal._files

            def full(fd: int, buffers: object, offset: int) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

            with monkeypatch.context() as patched:
                patched.setattr(files, "pwritev", full)
                raw = await RawClient.connect(broker, "other")
                await raw.publish("a", [b"lost"], first=1)
                error = await raw.read_until("error")
                assert (error["code"], error["of"], error["first"], error["sequence"]) == (
                    "disk_full",
                    "publish",
                    1,
                    1,
                )
                assert (await raw.read_until("closing"))["retry_after_ms"] > 0
                await writer.publish_many("a", numbered_bodies(10, 20))
                await until(lambda: broker.engine.dispatch.publisher_sequence("writer") == 10)
                live = await reader.subscribe("scratch.b")
                await writer.publish_many("scratch.b", [b"still served"])
                assert reader.connected and live is not None
            await writer.flush()
            assert await take(subscription, 20) == numbered_bodies(0, 20), "republished in order, once"


async def test_a_thousand_connections_that_never_log_on_are_closed_and_cost_nobody_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as broker:
        silent = [await RawClient.open(broker) for _ in range(1_000)]
        await until(lambda: len(broker.engine.roster.connections) == 1_000)
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("a")
            await reader.publish_many("a", numbered_bodies(0, 100))
            assert await take(subscription, 100) == numbered_bodies(0, 100)
            began = broker.engine.clock.monotonic_ms()
            with monkeypatch.context() as patched:
                for later in range(began, began + LOGON_TIMEOUT_MS + 2 * TICK_MS, TICK_MS):
                    patched.setattr(broker.engine.clock, "monotonic_ms", lambda later=later: later)
                    broker.engine.tick()
            assert (await silent[0].read_until("closing"))["code"] == "logon_timeout"
            assert (await silent[-1].read_until("closing"))["code"] == "logon_timeout"
            await until(lambda: [c.name for c in broker.engine.roster.connections] == ["reader"])


async def test_a_peer_that_asks_without_reading_the_answers_is_cut_off(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        raw = await RawClient.connect(broker, "rude")
        connection = broker.engine.roster.clients["rude"]
        connection.sink.is_writable = False  # as its socket says when the kernel takes no more
        for _ in range(2_000):
            raw.send_command({"c": "heartbeat"})
        await until(lambda: "rude" not in broker.engine.roster.clients)
        assert connection.is_closed


async def test_heartbeats_below_a_second_are_kept_by_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as broker:
        monkeypatch.setattr(
            broker.engine, "tick", lambda: None
        )  # the look once a second isn't what keeps them
        raw = await RawClient.open(broker)
        raw.send_command({"c": "logon", "name": "quick", "heartbeat_ms": 100})
        for _ in range(4):
            await raw.read_until("heartbeat")
        assert (await raw.read_until("closing"))["code"] == "heartbeat_timeout", "it said nothing itself"


async def test_an_unknown_command_and_a_bad_bookmark_are_answered_and_the_connection_goes_on(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker:
        raw = await RawClient.connect(broker, "clumsy")
        raw.send_command({"c": "dance"})
        assert (await raw.read_until("error"))["code"] == "unknown_command"
        raw.send_command({"c": "subscribe", "id": "s", "topic": "a", "bookmark": "yesterday"})
        error = await raw.read_until("error")
        assert (error["code"], error["id"]) == ("bad_bookmark", "s")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "a..b"})
        assert (await raw.read_until("error"))["code"] == "bad_pattern"
        raw.send_command({"c": "heartbeat"})
        await raw.read_until("heartbeat")


async def test_a_batch_with_a_wrong_checksum_is_refused_and_nothing_of_it_is_stored(tmp_path: Path) -> None:
    from broker_core import batch
    from broker_core.protocols.native import PUBLISH, encode_frame_header

    async with running_broker(tmp_path) as broker:
        raw = await RawClient.connect(broker, "writer")
        before = broker.engine.journal.next_sequence
        damaged = batch.build_single_topic_batch("writer", "a", [b"1", b"2"], 1)
        damaged[-1] ^= 1
        raw.write(encode_frame_header(PUBLISH, 0, len(damaged)) + damaged)
        assert (await raw.read_until("error"))["code"] == "bad_batch"
        assert broker.engine.journal.next_sequence == before


async def test_a_batch_in_another_clients_name_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        raw = await RawClient.connect(broker, "mallory")
        raw.name = "alice"
        await raw.publish("a", [b"1"], first=1)
        assert (await raw.read_until("error"))["code"] == "bad_batch"


async def test_numbers_that_nobody_reaches_are_refused_and_the_name_is_as_it_was(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        raw = await RawClient.connect(broker, "absent")
        await raw.publish("a", [b"poison"], first=2**62)
        assert (await raw.read_until("error"))["code"] == "bad_batch"
        owner = await RawClient.connect(broker, "absent")
        await owner.publish("a", [b"1"], first=1)
        assert (await owner.read_until("persisted"))["sequence"] == 1
        assert broker.engine.journal.next_sequence == 2


@pytest.mark.parametrize("field", ["publisher", "last", "row"])
async def test_a_batch_with_fields_that_dont_fit_is_refused(tmp_path: Path, field: str) -> None:
    from broker_core import batch
    from broker_core.checksum import crc32c
    from broker_core.protocols.native import PUBLISH, encode_frame_header

    async with running_broker(tmp_path) as broker:
        raw = await RawClient.connect(broker, "writer")
        built = batch.build_single_topic_batch("writer", "a", [b"1"], 1)
        at = {"publisher": 64, "last": 88, "row": 96 + Batch.parse(built).header.dictionary_length + 10}[
            field
        ]
        built[at] ^= 1
        built[24:28] = crc32c(bytes(built[96:])).to_bytes(4, "little")
        built[28:32] = bytes(4)
        built[28:32] = crc32c(bytes(built[:96])).to_bytes(4, "little")
        raw.write(encode_frame_header(PUBLISH, 0, len(built)) + built)
        assert (await raw.read_until("error"))["code"] == "bad_batch"
        assert broker.engine.journal.next_sequence == 1


async def test_a_batch_with_flags_is_refused_and_others_are_still_stored_and_answered(tmp_path: Path) -> None:
    from broker_core import batch
    from broker_core.protocols.native import PUBLISH, encode_frame_header

    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        built = batch.Batch.parse(batch.build_single_topic_batch("mallory", "a", [b"1", b"2"], 1))
        for flags in ("sequences", "mark"):
            raw = await RawClient.connect(broker, "mallory")
            bad = (
                built.select(np.arange(2))
                if flags == "sequences"
                else built.with_conflation_mark(batch.CONFLATED)
            )
            raw.write(encode_frame_header(PUBLISH, 0, bad.nbytes) + bytes(bad.buf))
            assert (await raw.read_until("error"))["code"] == "bad_batch"
        await writer.publish_many("a", [b"3"])
        await writer.flush()


async def test_an_unexpected_log_failure_is_reported_and_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path, broken=("journal_failed",)) as broker:
        raw = await RawClient.connect(broker, "writer")

        def broken(*_: object) -> None:
            raise RuntimeError("put in by the test")

        with monkeypatch.context() as patched:
            patched.setattr(broker.engine.journal, "write", broken)
            await raw.publish("a", [b"1"], first=1)
            assert (await raw.read_until("error"))["code"] == "journal_failed"
        again = await RawClient.connect(broker, "writer")
        await again.publish("a", [b"1"], first=1)
        assert (await again.read_until("error"))["code"] == "journal_failed", "it takes nothing more"
        words = exit_report.read_exit_report(broker.paths.control)
        assert words is not None and words.code == "journal_failed" and "put in by the test" in words.message


async def test_a_bookmark_that_was_removed_gets_a_gap_with_the_exact_interval(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        for start in range(0, 4_000, 500):
            await writer.publish_many("a", [b"%06d" % n + b"x" * 1_000 for n in range(start, start + 500)])
            await writer.flush()
        await asyncio.to_thread(broker.engine.journal.preallocate)
        plan = await ask(broker, "journal_plan", action="remove", age_s=0)
        assert plan["chosen"], plan
        receipt = await ask(broker, "journal_remove", names=plan["chosen"][:1], age_s=0)
        oldest = broker.engine.journal.first_sequence
        assert receipt["last_sequence"] == oldest - 1 > 0
        raw = await RawClient.connect(broker, "late")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "a", "bookmark": "test-1|1|"})
        gap = await raw.read_until("gap")
        assert (gap["from"], gap["to"]) == ("test-1|2|", f"test-1|{oldest - 1}|")
        kept = next(b for b in broker.engine.journal.read(oldest, 1 << 20, 1 << 40) if b.single_topic == "a")
        assert (await raw.deliveries(1))[0] == kept.body(0), "it goes on with the oldest record there is"
        raw.send_command(
            {"c": "subscribe", "id": "m", "topic": "a", "bookmark": "20200101T000000Z", "on_gap": "error"}
        )
        error = await raw.read_until("error")
        assert (error["code"], error["details"]["to"]) == ("bookmark_gone", f"test-1|{oldest - 1}|")


async def test_a_moment_inside_a_removed_interval_begins_with_its_gap_and_turned_ranges_are_refused(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        for start in range(0, 4_000, 500):
            await writer.publish_many("a", [b"%06d" % n + b"x" * 1_000 for n in range(start, start + 500)])
            await writer.flush()
        journal = broker.engine.journal
        await asyncio.to_thread(journal.preallocate)
        first, *others = journal.segments()
        plan = await ask(broker, "journal_plan", action="remove", age_s=0)
        assert first.name in plan["chosen"]
        await ask(broker, "journal_remove", names=[first.name], age_s=0)
        inside, behind = _moment(first.last_at - 2_000), _moment(others[0].last_at)
        gap = {
            "from": "test-1|1|",
            "to": f"test-1|{first.last_sequence}|",
            "why": "These records were removed from the log.",
        }
        for number, options in enumerate(
            (
                {"bookmark": inside},
                {"bookmark": f"[{inside}:20990101T000000Z)"},
                {"bookmark": f"[{inside}:0|1|]"},
                {"bookmark": inside, "durable": "d"},
                {"bookmark": inside, "managed": "m"},
            )
        ):
            raw = await RawClient.connect(broker, f"late-{number}")
            raw.send_command({"c": "subscribe", "id": "s", "topic": "a", **options})
            found = await raw.read_until("gap")
            assert {name: found[name] for name in gap} == gap, options
            held = next(b for b in journal.read(journal.first_sequence, 1 << 20, 1 << 40) if b.count > 1)
            assert (await raw.deliveries(1))[0] == held.body(0), options
        newest, oldest = (f"test-1|{one}|" for one in (others[-1].last_sequence, others[0].first_sequence))
        early, late = _moment(others[0].first_at - 1), _moment(others[-1].last_at + 1)
        for turned in (
            f"[{newest}:{oldest}]",
            f"[{late}:{early}]",
            f"[0|1|:{oldest}]",
            f"({late}:{newest}]",
            f"[{oldest}:{early})",
        ):
            raw.send_command({"c": "subscribe", "id": "r", "topic": "a", "bookmark": turned})
            refused = await raw.read_until("error")
            assert refused["code"] == "bad_bookmark", turned
            assert "before it begins" in refused["message"] or "begins now" in refused["message"], turned
        raw.send_command({"c": "subscribe", "id": "b", "topic": "a", "bookmark": behind, "on_gap": "error"})
        while (await raw.read_until("processed"))["id"] != "b":
            pass  # everything since that moment is there


def _moment(ns: int) -> str:
    """Return a moment as bookmarks spell it."""
    seconds, fraction = divmod(ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S}.{fraction:09d}Z"


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
async def test_a_new_durable_subscription_is_told_of_its_bookmark_what_any_other_is(
    tmp_path: Path, shared: bool
) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        for start in range(0, 4_000, 500):
            await writer.publish_many("a", [b"%06d" % n + b"x" * 1_000 for n in range(start, start + 500)])
            await writer.flush()
        plan = await ask(broker, "journal_plan", action="remove", age_s=0)
        await ask(broker, "journal_remove", names=plan["chosen"][:1], age_s=0)
        oldest = broker.engine.journal.first_sequence
        raw = await RawClient.connect(broker, "late")
        command = {"c": "subscribe", "topic": "a", "shared": shared, "ack": "client-individual"}
        raw.send_command(command | {"id": "s", "durable": "s", "bookmark": "test-1|1|"})
        gap = await raw.read_until("gap")
        assert (gap["id"], gap["from"], gap["to"]) == ("s", "test-1|2|", f"test-1|{oldest - 1}|")
        raw.send_command(command | {"id": "u", "durable": "u", "bookmark": "test-1|999999999|"})
        notice = await raw.read_until("notice")
        assert (notice["code"], notice["details"]["id"]) == ("bookmark_unknown", "u")
        raw.close()


async def test_a_stored_durable_subscription_is_not_refused_for_a_bookmark_that_it_does_not_use(
    tmp_path: Path,
) -> None:
    command = {"c": "subscribe", "id": "s", "topic": "a", "durable": "s", "bookmark": "0", "on_gap": "error"}
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        await writer.publish_many("a", [b"first"])
        await writer.flush()
        command["bookmark"] = f"test-1|{broker.engine.frontier.durable}|"
        raw = await RawClient.connect(broker, "reader")
        raw.send_command(command | {"ack": "none"})
        await raw.read_until("completed")
        for _ in range(8):
            await writer.publish_many("a", [b"x" * 1_000] * 500)
            await writer.flush()
        await raw.deliveries(4_000)
        raw.close()
        await until(lambda: not broker.engine.roster.clients.get("reader"))

        async def plan() -> list[str]:
            names: list[str] = (await ask(broker, "journal_plan", action="remove", age_s=0))["chosen"]
            return names

        async with asyncio.timeout(30):
            while not (chosen := await plan()):
                await asyncio.sleep(0.1)
        await ask(broker, "journal_remove", names=chosen, age_s=0)
        raw = await RawClient.connect(broker, "reader")
        raw.send_command(command | {"ack": "none"})
        await raw.read_until("completed")
        assert not [one for one in raw.received_commands if one["c"] in ("gap", "error")]
        raw.close()


async def test_a_segment_that_a_replay_needs_is_not_removed_and_the_answer_says_why(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        for _ in range(4):
            await writer.publish_many("a", [b"x" * 1_000] * 500)
            await writer.flush()
        await asyncio.to_thread(broker.engine.journal.preallocate)
        pin = broker.engine.journal.pin(1, "replay of auditor")
        plan = await ask(broker, "journal_plan", action="remove", age_s=0)
        assert plan["chosen"] == []
        assert "replay of auditor" in plan["skipped"][0]["why"]
        pin.release()
        assert (await ask(broker, "journal_plan", action="remove", age_s=0))["chosen"]


async def test_damage_in_the_middle_of_the_log_is_a_gap_with_its_interval_and_the_replay_goes_on(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        for start in range(0, 300, 100):
            await writer.publish_many("a", [b"<%06d>" % n for n in range(start, start + 100)])
            await writer.flush()
        middle = next(b for b in broker.engine.journal.read(1, 1 << 20, 1 << 40) if b.body(0) == b"<000100>")
        first, last = middle.first_sequence, middle.last_sequence
        at = _moment(middle.accepted_at)
    segment = next((tmp_path / "journal").glob("*.journal"))
    content = bytearray(segment.read_bytes())
    content[content.index(b"<000150>")] ^= 1
    segment.write_bytes(content)
    for sidecar in (tmp_path / "journal").glob("*.index.gz"):
        sidecar.unlink()
    async with running_broker(tmp_path) as broker:
        assert not broker.engine.journal.recovery.clean
        raw = await RawClient.connect(broker, "reader")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "a", "bookmark": "0"})
        gap = await raw.read_until("gap")
        assert (gap["from"], gap["to"]) == (f"test-1|{first}|", f"test-1|{last}|")
        assert (await raw.deliveries(100))[-1] == b"<000299>"
        raw.send_command({"c": "subscribe", "id": "t", "topic": "a", "bookmark": at})
        gap = await raw.read_until("gap")
        assert (gap["from"], gap["to"]) == (f"test-1|{first}|", f"test-1|{last}|"), "from a moment in it"
        for bookmark in ("0", f"test-1|{first - 1}|", f"test-1|{first + 3}|", "20200101T000000Z"):
            raw.send_command(
                {"c": "subscribe", "id": "e", "topic": "a", "bookmark": bookmark, "on_gap": "error"}
            )
            error = await raw.read_until("error")
            assert (error["code"], error["details"]["to"]) == ("bookmark_gone", f"test-1|{last}|"), bookmark
        raw.send_command(
            {"c": "subscribe", "id": "e", "topic": "a", "bookmark": f"test-1|{last}|", "on_gap": "error"}
        )
        assert (await raw.read_until("processed"))["id"] == "e", "nothing is missing behind it"
