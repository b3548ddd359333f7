"""Reports of a worker about its run: log lines, progress and heartbeats; checks for cancellation."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from broker_core.safe_text import escape_block
from console.choices import RunState
from console.models import ActionRun

MAX_LOG_CHARACTERS = 200_000
WRITE_INTERVAL_S = 0.5


class RunCancelled(Exception):
    """Raised in a worker whose run an operator cancelled. Not a failure: the run ends as cancelled."""


class RunProgress:
    """Writer of log and progress into a run's row, at most twice a second however often it is called.

    Progress is a percentage. A run has stages, a stage has steps, and a step has a fraction. Every method
    that writes raises `RunCancelled` when the run was cancelled, or was declared lost.
    """

    def __init__(self, run: ActionRun) -> None:
        self.run = run
        self._written = 0.0
        self._base = 0.0
        self._share = 100.0
        self._stage = (0.0, 100.0)

    def log(self, line: str) -> None:
        """Append a line with the current time (UTC) to the run's log, and drop the oldest text.

        The log has at most `MAX_LOG_CHARACTERS`. Control characters are escaped and further lines indented,
        because other hosts, files and jobs write some of the text.
        """
        stamped = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {escape_block(line.rstrip())}\n"
        self.run.log = (self.run.log + stamped)[-MAX_LOG_CHARACTERS:]
        self._write(force=False)

    def stage(self, number: int, of: int, label: str) -> None:
        """Start stage `number` (from 0) of `of` stages.

        Steps that follow divide this stage's share of the progress.
        """
        self._stage = (100.0 * number / of, 100.0 / of)
        self.step(0, 1, label)

    def step(self, number: int, of: int, label: str) -> None:
        """Start step `number` (from 0) of `of` within the stage.

        `set_fraction` then fills this step's share.
        """
        begin, share = self._stage
        self._base, self._share = begin + share * number / of, share / of
        self.run.progress, self.run.step = self._base, label[:300]
        self.log(label)
        self._write(force=True)

    def set_fraction(self, done: int, total: int) -> None:
        """Record that `done` of `total` of the current step is finished. Raises RunCancelled."""
        if total > 0:
            self.run.progress = round(self._base + self._share * min(1.0, done / total), 2)
        self._write(force=False)

    def heartbeat(self) -> None:
        """Record that the worker is alive. Raises RunCancelled."""
        self._write(force=False)

    def check(self) -> None:
        """Raise RunCancelled if the run was cancelled. Asks the database immediately."""
        self._write(force=True)

    def _write(self, *, force: bool) -> None:
        """Write progress and log into the run's row, unless that was done recently and `force` is False.

        Raises:
            RunCancelled: an operator cancelled the run, or it was declared lost.
        """
        now = time.monotonic()
        if not force and now - self._written < WRITE_INTERVAL_S:
            return
        self._written = now
        rows = ActionRun.objects.filter(pk=self.run.pk)
        rows.update(
            progress=self.run.progress,
            step=self.run.step,
            log=self.run.log,
            plan=self.run.plan,
            heard_at=datetime.now(UTC),
        )
        state, cancel = rows.values_list("state", "cancel_requested").get()
        if cancel or state == RunState.LOST:
            # A run declared lost may have been repeated already: two workers must not do the same work.
            raise RunCancelled
