"""What a process of its own for replays could give: `python -m bench.second_process [--windows 5] [--records 1000000]`.

Live delivery beside eight replays without end, read at the priority of everybody else: served by the same broker, and by
a second one that has the same records and nothing else to do. No way of taking replays out of a broker can do better than
that, so this is the most that it could win. The windows take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics

from rich.console import Console
from rich.table import Table

from bench.replays import MIB, REPLAYS, Served, filled_broker, live_window, spread

SECONDS = 4.0


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.second_process",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--windows", type=int, default=5, help="of each kind (default 5)")
    parser.add_argument("--records", type=int, default=1_000_000, help="in the log (default 1,000,000)")
    options = parser.parse_args()
    cases = ("no replays", "replays of the same process", "replays of a second process")
    p99: dict[str, list[float]] = {case: [] for case in cases}
    rates: dict[str, list[float]] = {case: [] for case in cases}
    with (
        filled_broker(options.records, journal_size=128 * MIB) as (address, _, home),
        filled_broker(options.records, journal_size=128 * MIB) as (other_address, _, other_home),
    ):
        os.sync()
        first, second = Served(address, home), Served(other_address, other_home)
        live_window(first, 0, SECONDS)
        for _ in range(options.windows):
            for case, replays, serving in zip(
                cases, (0, REPLAYS, REPLAYS), (None, None, second), strict=True
            ):
                found, rate = live_window(first, replays, SECONDS, replays_of=serving, nice=0)
                p99[case].append(found)
                rates[case].append(rate)
    table = Table(title=f"Live delivery of 20,000/s beside {REPLAYS} replays, {os.cpu_count()} cores")
    for heading in ("", "live p99", "replayed/s"):
        table.add_column(heading, justify="left" if not heading else "right")
    for case in cases:
        replayed = f"{statistics.median(rates[case]):,.0f}" if case != cases[0] else ""
        table.add_row(case, spread(p99[case]), replayed)
    Console().print(table)


if __name__ == "__main__":
    main()
