"""One torture run: a broker is struck several times under load, then its history is checked."""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broker_core.broker import EXIT_LOG_FAILED
from broker_core.control import exit_report
from tests.torture import foretold
from tests.torture.broker import INSTANCE, BrokerProcess, free_port, start
from tests.torture.clients import Clients, JournalOperator
from tests.torture.disks import PowerDisk, power_disk
from tests.torture.faulty_files import FileFault
from tests.torture.flips import flip_a_bit
from tests.torture.groups import run_group
from tests.torture.history import FaultKind, History, HistoryFault, check
from tests.torture.sites import run_sites

KINDS: Final = ("kills", "steps", "faults", "power", "clock", "flips", "group", "sites")
"""Kinds of strikes, in order: SIGKILL at any time; SIGKILL at a disk operation; a disk that fails, tears,
lies or is slow; a power cut at any time or at an operation; SIGKILL while the clock jumps; a flipped bit
while the broker is down; strikes on a group (`groups`), and on two sites and their link (`sites`).
"""
FORETOLD: Final = "foretold"
"""A run without strikes: a back-test is compared with what happened (foretold.py). It takes a minute and a
half, so `make test` has none.
"""
STRIKES = 12
"""Strikes per run, each followed by a restart."""
_PLACES: Final[tuple[tuple[str, str, int], ...]] = (
    ("pwritev", ".journal", 60),
    ("fdatasync", ".journal", 60),
    ("sync_directory", "", 12),
    ("rename", "", 12),
    ("rename", ".journal", 6),
    ("rename", ".gz", 6),
    ("rename", "kept.json", 6),
    ("rename", ".ack", 6),
    ("rename", "owners", 4),
    ("unlink", "", 8),
    ("unlink", ".journal", 4),
    ("unlink", ".spool", 3),
    ("fsync", "", 20),
    ("fsync", ".index.gz", 6),
    ("fsync", "kept.json", 6),
    ("pwritev", ".spool", 6),
    ("pwritev", ".index.gz", 6),
    ("pwritev", "kept.json", 6),
    ("pwritev", "", 80),
    ("truncate", "", 4),
    ("reserve", "", 6),
    ("zero_fill", "", 12),
    ("pwritev", ".tmp", 12),
)
"""Calls, names and up to which number: sealing, rolling, swaps, removals, recovery, offlining, draining, kept
positions.
"""


@dataclass
class Report:
    """Totals of all runs and the faults found."""

    counts: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    """Events of the broker by count: swaps, removals, offlining, and points of strikes."""
    faults: list[tuple[str, int, HistoryFault]] = field(default_factory=list)
    """Kind and seed of the run, and the fault."""

    def lines(self) -> list[str]:
        """Return the lines of the printed report."""
        by_kind = Counter(fault.kind for _, _, fault in self.faults)
        said = [
            f"{name:<14}{self.counts[name]}"
            for name in ("runs", "kills", "power cuts", "disk faults", "bit flips")
        ]
        said += [
            f"{'records':<14}{self.counts['records']}",
            f"{'acknowledged':<14}{self.counts['acknowledged']}",
        ]
        said += [f"{kind.value:<14}{by_kind[kind]}" for kind in FaultKind]
        return said + [f"  reached {name}: {number}" for name, number in sorted(self.reached.items())]


async def run(kind: str, seed: int, report: Report, strikes: int = STRIKES) -> list[HistoryFault]:
    """Perform one run of a type.

    The seed determines everything, as far as the machine's timing allows.
    """
    if kind in _SEVERAL:
        return await _run_several(kind, seed, report, strikes)
    chance = random.Random(f"{kind} {seed}")
    history = History()
    with ExitStack() as stack:
        own = Path(tempfile.mkdtemp(prefix="t-"))
        stack.callback(shutil.rmtree, own, ignore_errors=True)
        if kind == FORETOLD:
            missed = await foretold.run(own, seed, report.reached)
            report.counts["runs"] += 1
            report.faults += [(kind, seed, fault) for fault in missed]
            return missed
        disk = stack.enter_context(power_disk()) if kind == "power" else None
        home = (disk.place if disk is not None else own) / "h"
        struck = _BrokerRun(kind, home, disk, chance, history, report)
        await struck.run(own, strikes)
    found = check(history)
    report.counts["runs"] += 1
    report.counts["records"] += len(history.log)
    report.counts["acknowledged"] += sum(history.acknowledged.values())
    report.faults += [(kind, seed, fault) for fault in found]
    return found


_SEVERAL: Final = {"group": run_group, "sites": run_sites}
"""Runs with several brokers; their strikes are slow."""


async def _run_several(kind: str, seed: int, report: Report, strikes: int) -> list[HistoryFault]:
    found, struck, records, acknowledged = await _SEVERAL[kind](seed, max(strikes // 2, 1))
    report.counts["runs"] += 1
    report.counts["kills"] += sum("kill" in one for one in struck)
    report.counts["records"] += records
    report.counts["acknowledged"] += acknowledged
    report.reached.update(f"{kind}: {one}" for one in struck)
    report.faults += [(kind, seed, fault) for fault in found]
    return found


class _BrokerRun:
    """A broker over its restarts."""

    def __init__(
        self,
        kind: str,
        home: Path,
        disk: PowerDisk | None,
        chance: random.Random,
        history: History,
        report: Report,
    ) -> None:
        self.kind, self.home, self.disk, self.chance = kind, home, disk, chance
        self.history, self.report = history, report
        self.port = free_port()
        self.process: BrokerProcess | None = None

    async def run(self, own: Path, strikes: int) -> None:
        first = await self._live(())
        assert first is not None, "a new broker did not start"
        clients = Clients(self.history, own, self.port, self.chance)
        await clients.start()
        keeper = JournalOperator(
            self.history, self.home, random.Random(self.chance.random()), self.report.reached
        )
        keeping = asyncio.create_task(keeper.run())
        await self._strike(first, ())
        for _ in range(strikes - 1):
            points = self._points()
            process = await self._live(points)
            if process is not None:
                await self._strike(process, points)
        keeping.cancel()
        await asyncio.wait([keeping])
        last = await self._live(())
        if last is None:
            self._wrong("the broker didn't start any more")
        else:
            await keeper.let_go()
        await clients.finish()
        if last is not None:
            last.stop()

    def _points(self) -> tuple[FileFault, ...]:
        """Return the file faults for the next start of the broker."""
        if self.kind in ("kills", "clock", "flips") or (self.kind == "power" and self.chance.random() < 0.5):
            return ()
        call, name, most = self.chance.choice(_PLACES)
        if self.kind == "faults":
            kinds: tuple[str | int, ...] = (errno.EIO, errno.EIO, errno.ENOSPC, "delay")
            if call == "pwritev":
                kinds += ("short",)
            elif "sync" in call:
                kinds += ("lie",)  # harmless unless the power is cut
        else:
            kinds = ("before", "after", "torn") if call == "pwritev" else ("before", "after")
            if self.kind == "power":
                kinds = tuple(f"cut {one}" for one in kinds if one != "torn")
        return (FileFault(call, self.chance.randint(1, most), self.chance.choice(kinds), name),)

    async def _live(self, points: tuple[FileFault, ...]) -> BrokerProcess | None:
        """Start a broker; return None if a fault ended it during start, which also counts as a strike."""
        clock_seed = self.chance.randrange(2**32) if self.kind == "clock" else None
        flipped = (
            flip_a_bit(self.home, self.chance) if self.kind == "flips" and self.process is not None else None
        )
        process = self.process = start(self.home, self.port, *points, clock_seed=clock_seed)
        if flipped is not None:
            self.report.counts["bit flips"] += 1
        if await process.ready():
            if flipped is not None:
                self.report.reached[f"flipped {flipped.file_type}: went on"] += 1
            return process
        code = await self._end_of(process)
        if flipped is not None and process.refused:
            self.report.reached[f"flipped {flipped.file_type}: {process.refused}"] += 1
            flipped.put_right()
            return await self._live(points)
        await self._after(process, code, points)
        return None

    async def _strike(self, process: BrokerProcess, points: tuple[FileFault, ...]) -> None:
        """Let the broker run for a random time, then end it."""
        end = asyncio.get_running_loop().time() + self.chance.uniform(0.05, 0.5 if not points else 1.2)
        while asyncio.get_running_loop().time() < end and process.alive and not process.frozen:
            await asyncio.sleep(0.01)
        if not process.alive or process.frozen:
            await self._after(process, await self._end_of(process), points)
            return
        if self.disk is not None:
            process.freeze()
            await self._end_of(process)
            self.report.counts["power cuts"] += 1
            await self._power_on()
            return
        process.kill()
        self.report.counts["kills"] += 1

    async def _end_of(self, process: BrokerProcess) -> int:
        """Return the exit code of a process."""
        if self.disk is not None and process.frozen:
            self.disk.cut(self.chance)
            process.kill()
        return await process.wait_exit()

    async def _after(self, process: BrokerProcess, code: int, points: tuple[FileFault, ...]) -> None:
        """Check a process that ended without being killed: an injected fault or a named error must explain
        it.
        """
        met = f"struck: {points[0].what} at {points[0].call} {points[0].name}".rstrip() if points else ""
        if code == -9 and points:
            self.report.reached[met] += 1
            self.report.counts["power cuts" if self.disk is not None else "kills"] += 1
        elif self.kind == "faults" and points and (code == EXIT_LOG_FAILED or process.refused):
            self.report.reached[met] += 1
            self.report.counts["disk faults"] += 1
            words = exit_report.read_exit_report(self.home / "run" / f"{INSTANCE}.sock")
            if not process.refused and (words is None or not words.code.startswith("journal_")):
                self._wrong(f"it ended without a reason: {words}")
        else:
            self._wrong(f"it ended with {code}, {process.refused or 'without a reason'}; {points}")
            log = self.home.parent / f"{self.home.name}.log"
            if log.exists():
                print(log.read_text(errors="replace")[-3_000:])
        if self.disk is not None:
            await self._power_on()

    async def _power_on(self) -> None:
        assert self.disk is not None
        for _ in range(100):
            try:
                self.disk.power_on()
                return
            except RuntimeError:
                await asyncio.sleep(0.05)  # another process may still have a file open
        self.disk.power_on()

    def _wrong(self, sentence: str) -> None:
        self.history.faults.append(HistoryFault(FaultKind.UNEXPLAINED, sentence))
