"""Mutants of the modules that promises rest on, each before the tests that belong to its module; several at a time."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.torture.mutants import Mutant, chosen, equivalent, mutants

ROOT = Path(__file__).parents[2]
GOAL: Final = 0.95
_T = "tests/broker_core"
PLAN: Final[dict[str, tuple[str, ...]]] = {
    "broker_core/slow_clients/accounts/guard.py": (
        f"{_T}/slow_clients/accounts/test_guard.py", f"{_T}/slow_clients/accounts/test_guard_choices.py",
        f"{_T}/slow_clients/rules/test_rules_in_force.py", f"{_T}/slow_clients/accounts",
    ),
    "broker_core/slow_clients/accounts/pools.py": (f"{_T}/slow_clients/accounts", f"{_T}/slow_clients/rules"),
    "broker_core/slow_clients/evaluate/judge.py": (
        f"{_T}/slow_clients/evaluate", f"{_T}/slow_clients/accounts", f"{_T}/slow_clients/rules",
    ),
    "broker_core/slow_clients/evaluate/decide.py": (
        f"{_T}/slow_clients/evaluate", f"{_T}/slow_clients/accounts", f"{_T}/slow_clients/rules",
    ),
    "broker_core/slow_clients/evaluate/holds.py": (
        f"{_T}/slow_clients/evaluate", f"{_T}/slow_clients/accounts", f"{_T}/slow_clients/rules",
    ),
    "broker_core/delivery/lifecycle.py": (f"{_T}/delivery/test_lifecycle.py",),
    "broker_core/delivery/window.py": (f"{_T}/delivery/test_window.py", f"{_T}/delivery/test_backlog_law.py"),
    "broker_core/delivery/ledger.py": (f"{_T}/delivery/test_ledger.py", f"{_T}/engine/test_account_law.py"),
    "broker_core/delivery/account.py": (f"{_T}/delivery", f"{_T}/engine/test_account_law.py"),
    "broker_core/delivery/offline.py": (f"{_T}/delivery", f"{_T}/engine/test_spool_failed.py"),
    "broker_core/journal/recovery.py": (
        f"{_T}/journal/test_recovery.py", f"{_T}/journal/test_unsynced.py", f"{_T}/journal/test_crash_steps.py",
    ),
    "broker_core/journal/retention.py": (f"{_T}/journal/test_retention.py",),
    "broker_core/journal/swaps.py": (f"{_T}/journal/test_swaps.py", f"{_T}/journal/test_crash_steps.py"),
    "broker_core/journal/commit_log.py": (f"{_T}/journal/test_commit_log.py",),
    "broker_core/engine/dispatch.py": (
        f"{_T}/engine/test_dispatch.py", f"{_T}/engine/test_content_journaling.py", f"{_T}/connections/test_publisher.py",
        f"{_T}/engine/test_faults.py", f"{_T}/connections/test_commands.py",
    ),
    "broker_core/connections/publisher.py": (
        f"{_T}/connections/test_publisher.py", f"{_T}/connections/test_quotas.py", f"{_T}/engine/test_dispatch.py",
        f"{_T}/connections/test_commands.py",
    ),
    "broker_core/access/rights.py": (f"{_T}/access",),
    "broker_core/access/policy.py": (f"{_T}/access",),
}  # fmt: skip
"""Each module with its tests, the quick and telling ones first: the first that fails ends a run."""
PYTEST = ("-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no")


@dataclass
class Outcome:
    """What became of one module's mutants."""

    module: str
    tried: int = 0
    survivors: list[Mutant] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of those that were tried, how many were found."""
        return 1 - len(self.survivors) / self.tried if self.tried else 1.0


class Tree:
    """A copy of the checkout, in which one file at a time is wrong."""

    def __init__(self, place: Path) -> None:
        self.place = place
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True
        ).stdout.decode()
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, place / name)

    def passes(self, module: str, source: str | None, timeout_s: float) -> bool:
        """Whether the module's tests pass with that text in its place. One that hangs doesn't."""
        path = self.place / module
        path.write_text(source if source is not None else (ROOT / module).read_text())
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            stale.unlink()
        tests = [test for test in PLAN[module] if (self.place / test).exists()]
        with tempfile.TemporaryDirectory(prefix="m-", dir=self.place.parent) as temporary:
            running = subprocess.Popen(
                [sys.executable, "-m", "pytest", *PYTEST, *tests],
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
                path.write_text((ROOT / module).read_text())


def run(modules: list[str], number: int, seed: int, seconds: float, jobs: int) -> list[Outcome]:
    """Try `number` mutants of each module until the time is over; says what it does as it does it."""
    end = time.monotonic() + seconds
    outcomes = [Outcome(module) for module in modules]
    with tempfile.TemporaryDirectory(prefix="mu-") as place:
        trees: queue.Queue[Tree] = queue.Queue()
        for job in range(jobs):
            trees.put(Tree(Path(place) / str(job)))
        with ThreadPoolExecutor(jobs) as pool:
            for outcome in outcomes:
                _run_module(outcome, number, seed, end, trees, pool)
    return outcomes


def _run_module(
    outcome: Outcome, number: int, seed: int, end: float, trees: queue.Queue[Tree], pool: ThreadPoolExecutor
) -> None:
    module = outcome.module
    made = mutants((ROOT / module).read_text())
    picked = chosen(made, number, seed, equivalent(module))
    began = time.monotonic()
    tree = trees.get()
    assert tree.passes(module, None, 600), f"the tests of {module} fail without any mutant"
    trees.put(tree)
    took = time.monotonic() - began
    print(f"{module}: {len(picked)} of {len(made)} mutants, tests take {took:.0f} s", flush=True)

    def attempt(mutant: Mutant) -> None:
        if time.monotonic() > end:
            return
        tree = trees.get()
        try:
            survived = tree.passes(module, mutant.source, 30 + 3 * took)
        finally:
            trees.put(tree)
        outcome.tried += 1
        if survived:
            outcome.survivors.append(mutant)
            print(f"  survived, line {mutant.line}: {mutant.name}", flush=True)

    list(pool.map(attempt, picked))
    killed = outcome.tried - len(outcome.survivors)
    share = f"{100 * outcome.share:.0f} %" if outcome.tried else "there was no time"
    print(f"  {killed} of {outcome.tried} found, {share}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """`python -m tests.torture.mutation [--modules guard,rights] [--number 20] [--seed 7] [--minutes 9] [--jobs 2]`"""
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", default="", help="parts of module names, by commas; all without")
    parser.add_argument("--number", type=int, default=20, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=2)
    said = parser.parse_args(arguments)
    parts = [part for part in said.modules.split(",") if part]
    modules = [module for module in PLAN if not parts or any(part in module for part in parts)]
    outcomes = run(modules, said.number, said.seed, 60 * said.minutes, said.jobs)
    return int(any(outcome.share < GOAL for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
