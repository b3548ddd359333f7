"""How a worker tells about its run: log lines, progress, that it lives, and whether it shall stop."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from broker_core.safe_text import escape_block
from console.choices import RunState
from console.models import ActionRun

MAX_LOG_CHARACTERS = 200_000
WRITE_INTERVAL_S = 0.5


class RunCancelled(Exception):
    """An operator asked for the run to stop. Not an error: the run ends as cancelled."""


class RunProgress:
    """Writes into a run's row, at most twice a second however often it is called."""

    def __init__(self, run: ActionRun) -> None:
        self.run = run
        self._written = 0.0
        self._base = 0.0
        self._share = 100.0
        self._stage = (0.0, 100.0)

    def log(self, line: str) -> None:
        """Add a record to the run's log, with the time; the oldest ones go when it gets too long.

        Control characters are escaped, and further lines indented: hosts, files and jobs write some of it.
        """
        stamped = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {escape_block(line.rstrip())}\n"
        self.run.log = (self.run.log + stamped)[-MAX_LOG_CHARACTERS:]
        self._write(force=False)

    def stage(self, number: int, of: int, what: str) -> None:
        """Begin stage `number` (from 0) of `of`: the steps of what follows count within it."""
        self._stage = (100.0 * number / of, 100.0 / of)
        self.step(0, 1, what)

    def step(self, number: int, of: int, what: str) -> None:
        """Begin step `number` (from 0) of `of`; what `part` says then counts within it."""
        begin, share = self._stage
        self._base, self._share = begin + share * number / of, share / of
        self.run.progress, self.run.step = self._base, what[:300]
        self.log(what)
        self._write(force=True)

    def set_fraction(self, done: int, total: int) -> None:
        """Say how much of the current step is done. Raises Cancelled."""
        if total > 0:
            self.run.progress = round(self._base + self._share * min(1.0, done / total), 2)
        self._write(force=False)

    def heartbeat(self) -> None:
        """Say that the worker lives. Raises Cancelled."""
        self._write(force=False)

    def check(self) -> None:
        """Raises Cancelled if the run shall stop."""
        self._write(force=True)

    def _write(self, *, force: bool) -> None:
        now = time.monotonic()
        if not force and now - self._written < WRITE_INTERVAL_S:
            return
        self._written = now
        mine = ActionRun.objects.filter(pk=self.run.pk)
        mine.update(
            progress=self.run.progress,
            step=self.run.step,
            log=self.run.log,
            plan=self.run.plan,
            heard_at=datetime.now(UTC),
        )
        state, cancel = mine.values_list("state", "cancel_requested").get()
        if cancel or state == RunState.LOST:
            # A run that was taken for lost may have been asked for again: two must not work side by side.
            raise RunCancelled
