"""Mutants of the modules on which guarantees rest, several run in parallel.

Each runs against its module's tests.
"""

from __future__ import annotations

import ast
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.torture import forks
from tests.torture.forks import HUNG, KILLED, SURVIVED
from tests.torture.mutants import Mutant, chosen, equivalent, mutants

ROOT = Path(__file__).parents[2]
GOAL: Final = 0.95
_T = "tests/broker_core"
PLAN: Final[dict[str, tuple[str, ...]]] = {
    "broker_core/slow_clients/accounts/guard.py": (
        f"{_T}/slow_clients/accounts/test_guard.py",
        f"{_T}/slow_clients/accounts/test_guard_choices.py",
        f"{_T}/slow_clients/rules/test_rules_in_force.py",
        f"{_T}/slow_clients/accounts",
    ),
    "broker_core/slow_clients/accounts/pools.py": (f"{_T}/slow_clients/accounts", f"{_T}/slow_clients/rules"),
    "broker_core/slow_clients/evaluate/judge.py": (
        f"{_T}/slow_clients/evaluate",
        f"{_T}/slow_clients/accounts",
        f"{_T}/slow_clients/rules",
    ),
    "broker_core/slow_clients/evaluate/decision.py": (
        f"{_T}/slow_clients/evaluate",
        f"{_T}/slow_clients/accounts",
        f"{_T}/slow_clients/rules",
    ),
    "broker_core/slow_clients/evaluate/rule_state.py": (
        f"{_T}/slow_clients/evaluate",
        f"{_T}/slow_clients/accounts",
        f"{_T}/slow_clients/rules",
    ),
    "broker_core/delivery/lifecycle.py": (f"{_T}/delivery/test_lifecycle.py",),
    "broker_core/delivery/window.py": (f"{_T}/delivery/test_window.py", f"{_T}/delivery/test_backlog_law.py"),
    "broker_core/delivery/loss_ledger.py": (
        f"{_T}/delivery/test_loss_ledger.py",
        f"{_T}/engine/test_account_law.py",
    ),
    "broker_core/delivery/account.py": (f"{_T}/delivery/test_account.py", f"{_T}/engine/test_account_law.py"),
    "broker_core/delivery/spooled_backlog.py": (f"{_T}/delivery", f"{_T}/engine/test_spool_failed.py"),
    "broker_core/journal/recovery.py": (
        f"{_T}/journal/test_recovery.py",
        f"{_T}/journal/test_unsynced.py",
        f"{_T}/journal/test_crash_steps.py",
        f"{_T}/journal/test_other_log.py",
    ),
    "broker_core/journal/retention.py": (f"{_T}/journal/test_retention.py",),
    "broker_core/journal/segment_replacer.py": (
        f"{_T}/journal/test_segment_replacer.py",
        f"{_T}/journal/test_crash_steps.py",
    ),
    "broker_core/journal/commit_log.py": (f"{_T}/journal/test_commit_log.py",),
    "broker_core/engine/dispatch.py": (
        f"{_T}/engine/test_dispatch.py",
        f"{_T}/engine/test_content_journaling.py",
        f"{_T}/connections/test_publisher.py",
        f"{_T}/engine/test_faults.py",
        f"{_T}/connections/test_commands.py",
    ),
    "broker_core/connections/publisher.py": (
        f"{_T}/connections/test_publisher.py",
        f"{_T}/connections/test_quotas.py",
        f"{_T}/engine/test_dispatch.py",
        f"{_T}/connections/test_commands.py",
    ),
    "broker_core/access/rights.py": (f"{_T}/access",),
    "broker_core/access/policy.py": (f"{_T}/access",),
}
"""Each module with its tests, the quick and telling ones first: the first that fails ends a run."""
PYTEST = ("-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no")


@dataclass
class ModuleResult:
    """Results of one module's mutants."""

    module: str
    tried: int = 0
    survivors: list[Mutant] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Return the share of tried mutants that a test found."""
        return 1 - len(self.survivors) / self.tried if self.tried else 1.0


class CheckoutCopy:
    """A copy of the checkout in which one file at a time is mutated."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def copy(self) -> None:
        """Copy the checkout to this directory."""
        place = self.place
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True
        ).stdout.decode()
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, place / name)

    @contextmanager
    def with_mutant(self, module: str, source: str) -> Iterator[str]:
        """Put a mutant's source in the module's place until the block ends.

        Brokers in other processes see it too. Yields a directory for temporary files.
        """
        path = self.place / module
        with tempfile.TemporaryDirectory(
            prefix="m-", dir=self.place.parent, ignore_cleanup_errors=True
        ) as temporary:
            path.write_text(source)
            _forget(path)
            try:
                yield temporary
            finally:
                path.write_text((ROOT / module).read_text())
                _forget(path)

    def passes(self, module: str, source: str, timeout_s: float) -> bool:
        """Return whether the module's tests pass with this source, in their own process.

        A run that hangs does not pass.
        """
        with self.with_mutant(module, source) as temporary:
            running = subprocess.Popen(
                [sys.executable, "-m", "pytest", *PYTEST, *PLAN[module]],
                cwd=self.place,
                env=os.environ | {"TMPDIR": temporary},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                return running.wait(timeout_s) == 0
            except subprocess.TimeoutExpired:
                return False
            finally:
                if running.poll() is None:
                    os.killpg(running.pid, 9)
                    running.wait()


def _forget(path: Path) -> None:
    """Delete stale bytecode, since Python cannot distinguish two versions of a file written within one
    second.
    """
    for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        stale.unlink()


class ForkRunner:
    """A pytest in a tree that has a module's tests collected, and forks for each mutant
    (`tests.torture.forks`).
    """

    def __init__(self, tree: CheckoutCopy, module: str) -> None:
        self.tree = tree
        self.module = module
        ours, theirs = socket.socketpair()
        self._pytest = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "tests.torture.forks", *PYTEST, *PLAN[module]],
            cwd=tree.place,
            env=os.environ | {forks.MODULE: module, forks.SOCKET: str(theirs.fileno())},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._orders = ours.makefile("rw")
        ours.close()

    def collected(self) -> None:
        """Wait until pytest has collected the tests; from then on the module's source may change."""
        assert self._orders.readline(), f"pytest cannot collect the tests of {self.module}"

    def outcome(self, source: str, timeout_s: float) -> str:
        """Return the result of a mutant."""
        with self.tree.with_mutant(self.module, source) as temporary:
            order = {
                "source": str(self.tree.place / self.module),
                "temporary": temporary,
                "seconds": timeout_s,
            }
            self._orders.write(json.dumps(order) + "\n")
            self._orders.flush()
            return str(json.loads(self._orders.readline())["outcome"])

    def close(self) -> None:
        """End the process."""
        self._orders.close()
        self._pytest.wait()


def run(modules: list[str], number: int, seed: int, seconds: float, jobs: int) -> list[ModuleResult]:
    """Try `number` mutants of each module until the time is over; print progress."""
    end = time.monotonic() + seconds
    outcomes = [ModuleResult(module) for module in modules]
    with tempfile.TemporaryDirectory(prefix="mu-") as place:
        trees = [CheckoutCopy(Path(place) / str(job)) for job in range(jobs)]
        for tree in trees:
            tree.copy()
        for outcome in outcomes:
            _run_module(outcome, number, seed, end, trees)
    return outcomes


def _run_module(outcome: ModuleResult, number: int, seed: int, end: float, trees: list[CheckoutCopy]) -> None:
    module = outcome.module
    right = (ROOT / module).read_text()
    made = mutants(right)
    picked = chosen(made, number, seed, equivalent(module))
    if time.monotonic() > end:
        print(f"{module}: there was no time", flush=True)
        return
    free: queue.Queue[ForkRunner] = queue.Queue()
    for worker in [ForkRunner(tree, module) for tree in trees]:
        worker.collected()
        free.put(worker)
    try:
        first = free.get()
        began = time.monotonic()
        assert first.outcome(ast.unparse(ast.parse(right)), 600) == SURVIVED, (
            f"{module}: tests fail without a mutant"
        )
        took = time.monotonic() - began
        free.put(first)
        print(
            f"{module}: {len(picked)} of {len(made)} mutants, seed {seed}, tests take {took:.0f} s",
            flush=True,
        )

        def attempt(mutant: Mutant) -> None:
            if time.monotonic() > end:
                return
            worker = free.get()
            try:
                said = worker.outcome(mutant.source, 20 + 3 * took)
                survived = said not in (KILLED, HUNG)
                # Confirm survivors in a new process: code that ran during import was unchanged in the fork.
                survived = survived and worker.tree.passes(module, mutant.source, 60 + 4 * took)
            finally:
                free.put(worker)
            outcome.tried += 1
            if said == HUNG:  # counts as found, although a busy machine may also cause it
                print(f"  took too long, line {mutant.line}: {mutant.name}", flush=True)
            if survived:
                outcome.survivors.append(mutant)
                print(f"  survived, line {mutant.line}: {mutant.name}", flush=True)

        with ThreadPoolExecutor(len(trees)) as pool:
            list(pool.map(attempt, picked))
    finally:
        while not free.empty():
            free.get().close()
    killed = outcome.tried - len(outcome.survivors)
    share = f"{100 * outcome.share:.0f} %" if outcome.tried else "there was no time"
    print(f"  {killed} of {outcome.tried} found, {share}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run `python -m tests.torture.mutation [--modules guard,rights] [--number 20] [--seed 7] [--minutes
    9] [--jobs 2]`.
    """
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", default="", help="parts of module names, by commas; all without")
    parser.add_argument("--number", type=int, default=20, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=2)
    said = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that copies of the checkout are removed
    parts = [part for part in said.modules.split(",") if part]
    modules = [module for module in PLAN if not parts or any(part in module for part in parts)]
    outcomes = run(modules, said.number, said.seed, 60 * said.minutes, said.jobs)
    return int(any(outcome.share < GOAL for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
