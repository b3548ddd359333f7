"""The documents' examples run as they stand, one after the other, against a real broker.

A block counts as an example when `<!-- example: prints A | B -->` stands above it: it must print A, then B.
Python blocks are programs, and end when they have printed it; shell blocks run line by line; in others the
first line is a command, and what follows is typed, `^@` for NUL. Only the address is another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.brokers import address_of, running_broker, tcp_policy
from tests.support.stomp_client import port_of, stomp_policy

ROOT = Path(__file__).parents[2]
WRITTEN = "tcp://127.0.0.1:9007"
WRITTEN_TOO = "tcp://127.0.0.1:9107"
"""Address of a second instance in the documents."""
DOCUMENTS = ("README.md", "docs/client.md", "docs/group.md", "docs/protocol.md", "docs/stomp.md")
STOMP_PORT = "61613"


class Example(NamedTuple):
    line: int
    language: str
    prints: list[str]
    text: str


def examples(document: str) -> Iterator[Example]:
    """The marked blocks of a document."""
    lines = (ROOT / document).read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("<!-- example: prints "):
            end = lines.index("```", number + 2)
            wanted = line.removeprefix("<!-- example: prints ").removesuffix(" -->").split(" | ")
            yield Example(
                number + 2, lines[number + 1].removeprefix("```"), wanted, "\n".join(lines[number + 2 : end])
            )


@pytest.mark.parametrize("document", DOCUMENTS)
async def test_every_example_prints_what_the_document_says(document: str, tmp_path: Path) -> None:
    found = list(examples(document))
    assert found
    async with (
        running_broker(tmp_path / "home", stomp_policy()) as broker,
        running_broker(tmp_path / "other", tcp_policy("test-2")) as other,
    ):
        address = address_of(broker)
        for example in found:
            text = example.text.replace(WRITTEN, address).replace(STOMP_PORT, str(port_of(broker)))
            text = text.replace(WRITTEN_TOO, address_of(other))
            commands = (
                [[sys.executable, "-u", "-c", text]]
                if (example.language == "python")
                else [["bash", "-c", line] for line in text.splitlines()]
            )
            typed = ""
            if example.language == "":
                first, _, typed = text.partition("\n")
                commands = [first.removeprefix("$ ").split()]
            for command, wanted in zip(commands, _shared(example, len(commands)), strict=True):
                printed = await _run(command, wanted, address, tmp_path, typed)
                assert _in_order(wanted, printed), f"{document}:{example.line} printed {printed}"


def _shared(example: Example, commands: int) -> list[list[str]]:
    return [example.prints] if commands == 1 else [[wanted] for wanted in example.prints]


def _in_order(wanted: list[str], printed: list[str]) -> bool:
    rest = iter(printed)
    return all(any(one in line for line in rest) for one in wanted)


async def _run(command: list[str], wanted: list[str], address: str, directory: Path, typed: str) -> list[str]:
    """Run a program until it has printed all `wanted` lines or ends; return its output."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SLUICE_ADDRESS": address,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdin is not None
    process.stdin.write(f"{typed}\n".replace("^@", "\0").encode())
    printed: list[str] = []
    try:
        async with asyncio.timeout(30):
            async for line in _lines(process):
                printed.append(line)
                if _in_order(wanted, printed):
                    break
    except TimeoutError:
        printed.append("(nothing more came)")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return printed


async def _lines(process: asyncio.subprocess.Process) -> AsyncIterator[str]:
    assert process.stdout is not None
    async for line in process.stdout:
        yield line.decode().rstrip("\n")


@pytest.mark.parametrize("document", ["README.md", "docs/client.md", "docs/group.md"])
def test_no_python_block_stands_without_its_expectation(document: str) -> None:
    assert (ROOT / document).read_text().count("```python") == sum(
        e.language == "python" for e in examples(document)
    )
