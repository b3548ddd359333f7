"""Torture brokers until the time is over: kill them, cut their power, break their disks and clocks.

Members of groups also lose each other.

    make torture ARGS='--minutes 10 --seed 7'        ten minutes of everything
    make torture ARGS='--only power --minutes 60'    power cuts, an hour long
    make torture ARGS='--only group --minutes 30'    three members on three log services: kill, stop, cut
    make torture ARGS='--only sites --minutes 30'    two brokers and a sync link, killed, cut off, one way
    make torture ARGS='--only steps --seed 12 --runs 1'    repeat one run
    make torture ARGS='--only foretold --runs 2'     compare a back-test with what 200 clients then did
    make torture ARGS='--only mutants --minutes 60'  check that the tests find deliberate mistakes
    make torture ARGS='--only laws --minutes 30'     Hypothesis tests with many more, and new, examples

The exit code is 0 if nothing was found: no record lost, doubled, out of order or unexplained.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from itertools import count

from tests.torture import disks, laws, mutation
from tests.torture.runs import FORETOLD, KINDS, Report, run

PROGRESS_S = 10.0
ALONE = ("mutants", "laws")
"""Kinds that run alone: they run tests rather than brokers."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected kinds until the time is over; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="make torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, help="of the first run; each next one has the next")
    parser.add_argument("--runs", type=int, default=10**9, help="at most so many")
    parser.add_argument("--only", help=f"by commas, of {', '.join((*KINDS, FORETOLD, *ALONE))}")
    parser.add_argument(
        "--modules", default="", help="mutants: parts of modules' names; laws: files or tests; by commas"
    )
    parser.add_argument("--number", type=int, default=20, help="mutants of each module")
    parser.add_argument(
        "--times", type=int, default=100, help="laws: at most so many times the examples of make test"
    )
    said = parser.parse_args(arguments)
    seed = said.seed if said.seed is not None else random.SystemRandom().randrange(10**6)
    wanted = said.only.split(",") if said.only else [*KINDS, FORETOLD]
    if unknown := set(wanted) - {*KINDS, FORETOLD, *ALONE}:
        parser.error(f"{', '.join(sorted(unknown))}: what is that?")
    if wanted == ["mutants"]:
        words = ["--modules", said.modules, "--number", str(said.number), "--seed", str(seed)]
        return mutation.main([*words, "--minutes", str(said.minutes)])
    if wanted == ["laws"]:
        return laws.main([part for part in said.modules.split(",") if part], seed, said.minutes, said.times)
    kinds = [kind for kind in wanted if kind not in ALONE]
    if "power" in kinds and (why := disks.unavailable_reason()):
        print(f"power: skipped, {why}", flush=True)
        kinds.remove("power")
    return asyncio.run(_torture(kinds, seed, said.runs, said.minutes * 60))


async def _torture(kinds: list[str], seed: int, runs: int, seconds: float) -> int:
    report, begin, told = Report(), time.monotonic(), time.monotonic()
    print(f"seed {seed}, {', '.join(kinds)}, {seconds / 60:g} minutes", flush=True)
    for number in count():
        if number >= runs or not kinds or time.monotonic() > begin + seconds:
            break
        kind = kinds[number % len(kinds)]
        for fault in await run(kind, seed + number, report):
            print(f"  {kind}, seed {seed + number}: {fault.kind.value}: {fault.sentence}", flush=True)
        if time.monotonic() > told + PROGRESS_S:
            told = time.monotonic()
            print(
                f"{told - begin:6.0f} s: "
                + ", ".join(f"{report.counts[name]} {name}" for name in ("runs", "kills", "power cuts"))
                + f", {len(report.faults)} faults",
                flush=True,
            )
    print("\n".join(report.lines()))
    for kind, its, _ in dict.fromkeys((kind, its, "") for kind, its, _ in report.faults):
        print(f"again: make torture ARGS='--only {kind} --seed {its} --runs 1'")
    return int(bool(report.faults))


if __name__ == "__main__":
    sys.exit(main())
