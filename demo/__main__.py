"""`python -m demo feed | subscribers`: the two processes of the demo, against any broker."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from broker_core.errors import SluiceError
from broker_core.safe_text import print_line
from demo import feed, subscribers


def positive(text: str) -> float:
    """Parse a number above zero; `60x` is 60."""
    number = float(text.removesuffix("x"))
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text} isn't a number above zero")
    return number


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser("python -m demo", description="The demo's feed and its subscribers.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--address", default="tcp://127.0.0.1:9007", help="the broker (%(default)s)")
    kinds = made.add_subparsers(dest="kind", required=True, metavar="feed | subscribers")
    fed = kinds.add_parser("feed", parents=[common], help="publish the flights in the order they departed")
    fed.add_argument("--store", type=Path, default=Path("demo-feed.store"), help="the feed's publish store")
    pace = fed.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=positive, help="flights a second (1000)")
    pace.add_argument("--speed", type=positive, metavar="Xx", help="so many times their real pace, e.g. 600x")
    read = kinds.add_parser("subscribers", parents=[common], help="run the four subscribers")
    usual = subscribers.Manners()
    read.add_argument("--slow-reads", type=positive, default=usual.reads_s, help="seconds the slow one reads")
    read.add_argument("--slow-stops", type=positive, default=usual.stops_s, help="seconds it then stops")
    return made


async def _until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine until SIGTERM or SIGINT, then cancel it, so that clients close their connections."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the feed or the subscribers; return 0 when finished or stopped, 1 on an error."""
    options = parser().parse_args(arguments)
    if options.kind == "feed":
        work = feed.run(options.address, options.store, rate=options.rate, speed=options.speed)
    else:
        work = subscribers.run(options.address, subscribers.Manners(options.slow_reads, options.slow_stops))
    try:
        asyncio.run(_until_stopped(work))
    except SluiceError as error:
        print_line(f"{error.code}: {error.sentence} {error.fix}", sys.stderr)
        return 1
    except FileNotFoundError as error:
        print_line(str(error), sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
