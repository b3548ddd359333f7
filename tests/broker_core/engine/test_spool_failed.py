"""A disk that rejects spool writes: a decision with its own code and exact figures.

References wait in memory meanwhile.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from broker_core.batch import Buffer
from broker_core.client import AsyncClient
from broker_core.config import PolicyDocument
from broker_core.delivery.spool import file_queue
from broker_core.errors import OperatorError
from broker_core.journal.files import FileSystem
from tests.support.brokers import address_of, ask, running_broker, tcp_policy, until
from tests.support.raw import RawClient


def policy_without_a_spool(tmp_path: Path) -> PolicyDocument:
    (tmp_path / "file").write_bytes(b"")
    return tcp_policy(message_disk_path=str(tmp_path / "file" / "below"))


async def slow_reader(broker: object, topic: str) -> RawClient:
    slow = await RawClient.connect(broker, "slow")  # type: ignore[arg-type]
    slow.send_command({"c": "subscribe", "id": "s", "topic": topic, "ack": "client", "prefetch": 2})
    await slow.read_until("processed")
    return slow


async def test_what_cant_be_spooled_is_decided_told_and_counted(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, policy_without_a_spool(tmp_path)) as broker,
        AsyncClient(address_of(broker), "writer") as writer,
    ):
        slow = await slow_reader(broker, ">")
        for number in range(10):
            await writer.publish_many("scratch.a", [b"%d" % number])
            await writer.publish_many("kept.a", [b"%d" % number])
        await writer.flush()
        broker.engine.roster.clients[
            "slow"
        ].sink.is_writable = False  # as its socket says when the kernel takes no more
        await ask(broker, "offline", name="slow")
        for _ in range(5):
            await writer.publish_many("scratch.a", [b"x" * 5_000])
        notice = await slow.read_until("notice")
        assert notice["code"] == "spool_failed"
        assert "can't be written to its spool" in notice["message"] and "Not a directory" in notice["message"]
        slow.send_command({"c": "told", "decision": notice["decision"]})
        await until(lambda: broker.engine.decisions.recent)
        (decision,) = broker.engine.decisions.recent
        assert (decision.reason, decision.action, decision.told) == (
            "spool_failed",
            "disconnect",
            "yes",
        )
        assert (decision.kept, decision.lost) == (notice["kept"], notice["lost"])
        assert decision.kept == 10, "what is journaled can be replayed"
        assert decision.lost in range(11, 16), "what isn't is lost, with the message that didn't fit"
        await until(
            lambda: broker.engine.roster.ended_account.matched.messages == decision.kept + decision.lost
        )


async def test_a_client_of_journaled_topics_goes_on_by_reference_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_queue, "FLUSH_BYTES", 100)
    async with (
        running_broker(tmp_path, policy_without_a_spool(tmp_path)) as broker,
        AsyncClient(address_of(broker), "writer") as writer,
        AsyncClient(address_of(broker), "other") as other,
    ):
        slow = await slow_reader(broker, "t.>")
        connection = broker.engine.roster.clients["slow"]
        connection.sink.is_writable = False
        await ask(broker, "offline", name="slow")
        for number in range(40):
            await writer.publish_many("t.a", [b"%d" % number])
            await other.publish_many("u.a", [b"between"])  # so that no reference is joined to the last
            await writer.flush()
            await other.flush()
        connection.sink.is_writable = True
        connection.on_writable()
        seen: list[bytes] = []
        while len(seen) < 40:
            seen += await slow.deliveries(1)
            slow.send_command({"c": "ack", "id": "s", "upto": len(seen)})
        assert seen == [b"%d" % number for number in range(40)]
        assert not broker.engine.decisions.recent


async def test_a_path_that_takes_nothing_is_refused_at_preview_and_apply(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        policy = replace(broker.engine.policy, pool=policy_without_a_spool(tmp_path).pool, revision=2)
        with pytest.raises(OperatorError) as caught:
            await broker.apply(policy)
        assert caught.value.code == "bad_spool_path" and "Not a directory" in caught.value.sentence
        with pytest.raises(AssertionError, match="bad_spool_path"):
            await ask(broker, "preview", policy=policy.to_dict())
        assert broker.engine.policy.revision != 2
        assert not list((tmp_path / "spool").iterdir())


class BadSpools(FileSystem):
    """A disk on which spools can't be written from `torn` on: the first of them tears, the others are
    refused.
    """

    torn = False
    refused = 0

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        if not self.torn or ".spool." not in Path(f"/proc/self/fd/{fd}").readlink().name:
            return super().pwritev(fd, buffers, offset)
        self.refused += 1
        if self.refused == 1:
            return super().pwritev(fd, [b"".join(buffers)[:7]], offset)
        raise OSError(errno.EIO, "Input/output error")


async def test_a_spool_that_tears_while_its_client_is_offlined_ends_that_client_alone(tmp_path: Path) -> None:
    disk = BadSpools()
    async with (
        running_broker(tmp_path, files=disk) as broker,
        AsyncClient(address_of(broker), "writer") as writer,
        AsyncClient(address_of(broker), "other") as other,
    ):
        hears = await other.subscribe("scratch.>")
        slow = await slow_reader(broker, "scratch.>")
        connection = broker.engine.roster.clients["slow"]
        connection.sink.is_writable = False
        for number in range(40):  # more than a spool holds in memory: it is written while they move
            await writer.publish_many("scratch.a", [b"%d" % number + b"x" * 1_000])
            await writer.flush()
        disk.torn = True
        with pytest.raises(AssertionError, match=r"not_live.*couldn't be written"):
            await ask(broker, "offline", name="slow")
        notice = await slow.read_until("notice")
        assert notice["code"] == "spool_failed" and "Input/output error" in notice["message"]
        slow.send_command({"c": "told", "decision": notice["decision"]})
        await until(lambda: broker.engine.decisions.recent)
        assert disk.refused > 1
        gone = broker.engine.roster.ended_account
        assert gone.matched.messages == notice["kept"] + notice["lost"]
        messages = aiter(hears)
        for number in range(40):
            assert int((await anext(messages)).body.split(b"x")[0]) == number
