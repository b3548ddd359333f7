"""Fake broker with a real journal: plans, swaps and removals act on real files, as in a broker."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from msgspec import structs

from broker_core.batch import Batch, build_single_topic_batch, stamp_header
from broker_core.errors import SluiceError
from broker_core.journal.appender import JournalOptions
from broker_core.journal.journal import Journal
from broker_core.journal.retention import plan_retention
from tests.support.fake_broker import FakeBroker

SEGMENT = 1024 * 1024


class JournalBroker(FakeBroker):
    """A fake broker whose journal is real."""

    def __init__(self, path: Path, instance: str, directory: Path, archive: Path) -> None:
        super().__init__(path, instance)
        self.archive = archive
        self.journal = Journal.open(directory, instance, archive, JournalOptions(SEGMENT, 1))

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self.journal.close()

    def fill(self, segments: int) -> None:
        """Write until `segments` segments are sealed."""
        while sum(one.state != "current" for one in self.journal.segments()) < segments:
            raw = build_single_topic_batch("publisher", "orders", [b'{"price": 100}' * 100] * 100)
            first = self.journal.next_sequence
            stamp_header(
                raw,
                origin=self.journal.origin,
                epoch=self.journal.epoch,
                first_sequence=first,
                accepted_at=time.time_ns(),
            )
            self.journal.write([Batch.parse(raw)])
            self.journal.sync()

    def records(self) -> int:
        """Return the number of records that a replay from the beginning delivers."""
        total, at, last = 0, self.journal.first_sequence, self.journal.next_sequence - 1
        while batches := self.journal.read(at, 4 * SEGMENT, last):
            total += sum(batch.count for batch in batches)
            at = batches[-1].last_sequence + 1
        return total

    def answer(self, line: bytes) -> dict[str, Any]:
        """Return the reply to a request; errors of the journal become error replies."""
        try:
            return super().answer(line)
        except SluiceError as problem:
            return {"ok": False, "error": problem.as_dict()}

    def do_journals(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the journal's segments."""
        return [
            {**one._asdict(), "path": str(one.path), "bytes": one.nbytes, "pinned_by": []}
            for one in self.journal.segments()
        ]

    def do_journal_plan(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the retention plan for the journal."""
        now = time.time_ns()
        made = plan_retention(
            request["action"],
            self.journal.segments(),
            now - int(request["age_s"] * 1e9),
            self.journal.pins(),
            now,
        )
        return {
            "action": request["action"],
            "chosen": [one.name for one in made.chosen],
            "segments": [
                {
                    "name": one.name,
                    "path": str(one.path),
                    "bytes": one.nbytes,
                    "records": one.records,
                    "first_sequence": one.first_sequence,
                    "last_sequence": one.last_sequence,
                }
                for one in made.chosen
            ],
            "skipped": [structs.asdict(one) for one in made.skipped],
            "bytes": made.nbytes,
            "archive_directory": str(self.archive),
        }

    def do_journal_swap(self, request: dict[str, Any]) -> dict[str, Any]:
        """Swap a prepared file into the journal."""
        swap = {"archive": self.journal.archive_swap, "compress": self.journal.compress_swap}[
            request["action"]
        ]
        swap(request["name"], Path(request["prepared"]))
        return {"name": request["name"], "action": request["action"]}

    def do_journal_remove(self, request: dict[str, Any]) -> dict[str, Any]:
        """Remove segments from the journal."""
        return structs.asdict(self.journal.remove(request["names"]))
