"""A short run of each kind of torture: checks that it works and finds gross faults. `make torture` runs
for hours.
"""

from __future__ import annotations

import os
import random
import socket
import tempfile
from pathlib import Path

import pytest

from broker_core.journal.files import FileSystem, replace_durably
from broker_core.protocols.native import encode_command
from tests.torture import disks
from tests.torture.broker import free_port, start
from tests.torture.faulty_files import FileFault
from tests.torture.flips import flip_a_bit
from tests.torture.runs import KINDS, Report, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_lost_doubled_reordered_or_unexplained(kind: str) -> None:
    if kind == "power" and (why := disks.unavailable_reason()):
        pytest.skip(why)
    seed, report = random.SystemRandom().randrange(10**6), Report()
    print(f"make torture ARGS='--only {kind} --seed {seed} --runs 1' (with 3 strikes)")
    assert await run(kind, seed, report, strikes=3) == []
    assert report.counts["acknowledged"] > 0
    if kind in ("group", "sites"):
        return
    struck = ("power cuts",) if kind == "power" else ("kills", "disk faults")
    assert sum(report.counts[name] for name in struck) >= 2


@pytest.mark.parametrize(("at", "comes"), [(1, True), (1_000_000, False)])
async def test_a_misfortune_comes_at_its_call_and_no_other(at: int, comes: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="t-") as home:
        process = start(Path(home) / "h", free_port(), FileFault("fdatasync", at, "before", ".journal"))
        assert await process.ready()
        with socket.create_connection(("127.0.0.1", process.port)) as publisher:
            publisher.sendall(encode_command({"c": "logon", "name": "p"}))
            publisher.sendall(
                encode_command({"c": "publish", "topic": "a", "text": "1", "ack": ["persisted"]})
            )
            heard = b""
            while chunk := publisher.recv(1 << 16):
                heard += chunk
                if b"persisted" in heard:
                    break
        assert (b"persisted" in heard) is not comes
        if comes:
            assert await process.wait_exit() == -9
        process.kill()


def test_a_cut_loses_what_was_not_synced_and_nothing_else() -> None:
    if why := disks.unavailable_reason():
        pytest.skip(why)
    with disks.power_disk() as disk:
        kept, lost = disk.place / "kept", disk.place / "lost"
        replace_durably(FileSystem(), kept, b"kept")
        lost.write_bytes(b"lost")
        place = os.open(disk.place, os.O_RDONLY)
        disks.cut_power(place)
        os.close(place)
        disk.power_on()
        assert kept.read_bytes() == b"kept"
        assert not lost.exists()


def test_a_flipped_bit_is_put_right_by_a_second_flip(tmp_path: Path) -> None:
    path = tmp_path / "test-1.00000000000000000001.journal"
    path.write_bytes(bytes(range(256)))
    flipped = flip_a_bit(tmp_path, random.Random(7))
    assert flipped is not None and flipped.file_type == "test-1.journal"
    changed = [at for at, byte in enumerate(path.read_bytes()) if byte != at]
    assert changed == [flipped.offset]
    flipped.put_right()
    assert path.read_bytes() == bytes(range(256))
