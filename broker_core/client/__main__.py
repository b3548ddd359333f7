"""Command line client that publishes and subscribes: `python -m broker_core.client --help`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import orjson

from broker_core.client import (
    AsyncClient,
    ConnectionLoss,
    FileBookmarkStore,
    FilePublishStore,
    Message,
    ReconnectPolicy,
    tls_context,
)
from broker_core.errors import SluiceError
from broker_core.safe_text import escape_bytes, escape_line, print_line, to_json_line, write_bytes

DEFAULT_ADDRESS = "tcp://127.0.0.1:9007"

_ABOUT = f"""\
Publish messages to a Sluice broker, or print messages from it.

  python -m broker_core.client publish orders.eu '{{"id": 1, "amount": 120}}'
  python -m broker_core.client subscribe 'orders.>'

Each has its own --help with more examples. The address comes from --address, else SLUICE_ADDRESS, else
{DEFAULT_ADDRESS}; ws://127.0.0.1:9008/ works the same. Several, by commas, are tried in turn.

A transport may ask who you are: --user with SLUICE_PASSWORD in the environment, SLUICE_TOKEN, \
or --certificate.
tcps:// and wss:// are reached by TLS; --ca names the authorities to trust. docs/client.md has the same \
for programs.
"""

_PUBLISH = """\
Publish messages to one topic: those named on the command line, or the lines of standard input.
It ends when the broker has acknowledged all of them, which for a journaled topic means that they \
are on its disk.

  python -m broker_core.client publish orders.eu '{"id": 1}' '{"id": 2}'
  seq 1 100000 | python -m broker_core.client publish numbers
  python -m broker_core.client publish orders.eu --store unsent.store < orders.jsonl
      (with a store, what was not acknowledged is sent by the next run, if this one is interrupted, \
and nothing
       is stored twice; such a run needs the same --name)
"""

_SUBSCRIBE = """\
Print the messages of a topic or a pattern, one line each, until interrupted.

  python -m broker_core.client subscribe orders.eu                    what is published from now on
  python -m broker_core.client subscribe 'orders.*'                   \
one level; 'orders.>' any number of levels
  python -m broker_core.client subscribe 'orders.>' --filter '/amount > 100'
  python -m broker_core.client subscribe 'orders.>' --bookmark 0      everything in the log, then live
  python -m broker_core.client subscribe 'orders.>' --bookmark 0 --replay-only --format line
  python -m broker_core.client subscribe 'orders.>' --bookmark 20261121T134500Z
  python -m broker_core.client subscribe 'orders.>' --bookmark MOST_RECENT --store marks.store --name screen-1
      (goes on after the last message that the previous run printed; if that was killed, one may come twice)
  python -m broker_core.client subscribe 'orders.>' --address tcp://10.0.0.1:9007,tcp://10.0.0.2:9007 \
--bookmark 0
      (goes on by the other transport when one is lost, and misses and repeats nothing)

Formats: body (just the message, as it is where the output isn't a terminal), line (bookmark, topic, message),
json (one object with all of it). line and json write one line a message, whatever it holds; control
characters are escaped.
"""


def _make_parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m broker_core.client", description=_ABOUT, formatter_class=formatter
    )
    common = argparse.ArgumentParser(add_help=False)
    add = common.add_argument
    default_address = os.environ.get("SLUICE_ADDRESS", DEFAULT_ADDRESS)
    add("--address", default=default_address, help="transport's address, or several by commas (%(default)s)")
    add("--name", help="unique client name; a second client of that name replaces the first")
    add("--user", help="user name; the password is read from SLUICE_PASSWORD")
    add("--ca", type=Path, help="trusted authorities for tcps:// and wss:// (PEM; default: the system's)")
    add("--certificate", type=Path, help="client certificate to show (PEM)")
    add("--key", type=Path, help="its key, when it isn't in the same file")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="publish | subscribe")
    add_command = partial(kinds.add_parser, parents=[common], formatter_class=formatter)
    add = add_command("publish", description=_PUBLISH, help="publish messages to a topic").add_argument
    add("topic")
    add("message", nargs="*", help="messages; without any, each line of standard input is one")
    add("--store", type=Path, help="file that stores unacknowledged messages")
    add = add_command(
        "subscribe", description=_SUBSCRIBE, help="print the messages of a topic or pattern"
    ).add_argument
    add("topic", help="topic or pattern")
    add("--filter", help="expression on JSON messages, as \"/amount > 100 AND /side = 'buy'\"")
    add("--bookmark", help="0 (from the start), 0|1| (now), a bookmark, a moment, or MOST_RECENT")
    add(
        "--store",
        type=Path,
        help="file that stores the position of the last printed message, for MOST_RECENT",
    )
    add("--count", type=int, help="end after this number of messages")
    add("--replay-only", action="store_true", help="end when the log is replayed; needs --bookmark")
    add("--format", choices=("body", "line", "json"), default="body")
    return parser


def _make_client(options: argparse.Namespace) -> AsyncClient:
    store = str(options.store) if options.store else None
    publishes = options.kind == "publish"
    tls = (
        tls_context(options.ca, options.certificate, options.key)
        if options.ca or options.certificate
        else None
    )
    return AsyncClient(
        options.address.split(","),
        options.name or f"{options.kind}-{os.getpid()}",
        user=options.user,
        password=os.environ.get("SLUICE_PASSWORD") if options.user else None,
        token=os.environ.get("SLUICE_TOKEN"),
        tls=tls,
        publish_store=FilePublishStore(store) if store and publishes else None,
        bookmark_store=FileBookmarkStore(store) if store and not publishes else None,
        reconnect=ReconnectPolicy(first_connect_timeout=3.0),
        on_notice=lambda notice: print_line(f"notice {notice.code}: {notice.message}", sys.stderr),
        on_disconnect=_report_loss,
    )


async def _publish(options: argparse.Namespace) -> None:
    async with _make_client(options) as client:
        number = 0
        async for body in _read_bodies(options.message):
            await client.publish(options.topic, body)
            number += 1
        await client.flush()
        print_line(f"{number} message{'' if number == 1 else 's'} acknowledged", sys.stderr)


async def _read_bodies(messages: Sequence[str]) -> AsyncIterator[bytes]:
    """Yield the messages of the command line, or the lines of standard input if there are none."""
    for message in messages:
        yield message.encode()
    if messages:
        return
    while lines := await asyncio.to_thread(_read_lines):
        for line in lines:
            yield line.rstrip(b"\r\n")


def _read_lines() -> list[bytes]:
    """Return the next line of standard input, and the lines that a pipe has already buffered."""
    first = sys.stdin.buffer.readline()
    if not first:
        return []
    buffer = cast(BufferedReader, sys.stdin.buffer)
    buffered = b"" if sys.stdin.isatty() else buffer.peek()
    return [first, *(buffer.readline() for _ in range(buffered.count(b"\n")))]


async def _subscribe(options: argparse.Namespace) -> None:
    remaining = options.count
    async with _make_client(options) as client:
        subscription = await client.subscribe(options.topic, options.filter, options.bookmark)
        if remaining == 0:
            return
        async for message in subscription.messages(until_completed=options.replay_only):
            write_bytes(_format_message(message, options.format))
            subscription.done(message)
            if remaining is not None:
                remaining -= 1
                if remaining == 0:
                    return


def _format_message(message: Message, format_name: str) -> bytes:
    if format_name == "body":
        return (escape_bytes(message.body) if sys.stdout.isatty() else message.body) + b"\n"
    if format_name == "line":
        head = escape_line(f"{message.bookmark or '-'} {message.topic} ")
        return head.encode() + escape_bytes(message.body) + b"\n"
    data: Any
    try:
        orjson.loads(message.body)
        data = orjson.Fragment(message.body)
    except orjson.JSONDecodeError:
        data = message.body.decode(errors="replace")
    return to_json_line({"bookmark": message.bookmark, "topic": message.topic, "data": data})


def _report_loss(loss: ConnectionLoss) -> None:
    """Print the reason of a lost connection.

    The last loss is not printed here: it becomes the error of the command, which `main` prints.
    """
    if loss.retry_in_s is not None:
        print_line(str(loss), sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit status.

    0: success. 1: the broker or a store reported an error. 130: interrupted.
    """
    parser = _make_parser()
    options = parser.parse_args(arguments)
    if options.kind == "subscribe":
        if options.replay_only and options.bookmark is None:
            parser.error("--replay-only needs --bookmark, as --bookmark 0")
        if options.bookmark == "MOST_RECENT" and options.store is None:
            parser.error("--bookmark MOST_RECENT needs --store")
    try:
        asyncio.run(_publish(options) if options.kind == "publish" else _subscribe(options))
    except SluiceError as error:
        print_line(f"{error.code}: {error.sentence} {error.fix}", sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        # The reader of the output closed the pipe. Exit without the interpreter's cleanup, which would write
        # again.
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
