"""A pytest plugin that collects tests once and forks for each mutant until the first test fails.

A fork replaces only the code of functions; a mutant that changes more is refused as unfit. Tests that found
earlier mutants run first.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

import pytest

MODULE, SOCKET = "SLUICE_MUTATED", "SLUICE_MUTATED_SOCKET"
KILLED, SURVIVED, UNFIT, HUNG = "killed", "survived", "unfit", "hung"
Place = tuple[str, int]
"""A function's qualified name, and which of that name it is."""


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Serve requests instead of running tests, if the environment asks for it."""
    if SOCKET not in os.environ:
        return None
    module = Path(os.environ.pop(MODULE)).resolve()
    orders = socket.socket(fileno=int(os.environ.pop(SOCKET)))
    serve(session, module, orders)
    return True


def serve(session: pytest.Session, module: Path, orders: socket.socket) -> None:
    """Answer each request: a line with the mutant's file, a directory for temporary files, and a time limit
    in seconds.
    """
    functions = functions_of(module)
    gc.collect()
    gc.freeze()
    with orders.makefile("rw") as stream:
        stream.write("collected\n")
        stream.flush()
        for line in stream:
            order = json.loads(line)
            outcome, by = try_mutant(session, module, functions, order)
            if by:
                session.items.sort(key=lambda item: item.nodeid != by)
            stream.write(json.dumps({"outcome": outcome, "by": by}) + "\n")
            stream.flush()


def try_mutant(
    session: pytest.Session, module: Path, functions: dict[Place, list[FunctionType]], order: dict[str, str]
) -> tuple[str, str]:
    """Return the result of a mutant, and the test that found it."""
    answers, answer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setsid()
            os.environ["TMPDIR"], tempfile.tempdir = order["temporary"], None
            said = run(session, module, functions, Path(order["source"]).read_text())
            os.write(answer, json.dumps(said).encode())
        finally:
            os._exit(0)
    os.close(answer)
    try:
        ready, _, _ = select.select([answers], [], [], float(order["seconds"]))
        if not ready:
            return HUNG, ""
        # A mutant that ends the process counts as found.
        said = os.read(answers, 4096)
        outcome, by = json.loads(said) if said else (KILLED, "")
        return outcome, by
    finally:
        os.close(answers)
        _end(child)


def _end(child: int) -> None:
    for _ in range(100):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


class _TestReports:
    """A plugin that records whether a test failed."""

    failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed


def run(
    session: pytest.Session, module: Path, functions: dict[Place, list[FunctionType]], source: str
) -> tuple[str, str]:
    """Put the mutant in and run the tests until one fails; runs in the fork."""
    made = dict(codes(compile(source, str(module), "exec")))
    if made.keys() != functions.keys():
        return UNFIT, ""
    try:
        for place, known in functions.items():
            for function in known:
                function.__code__ = made[place]
    except ValueError:
        return UNFIT, "another number of closed-over names"
    reports, items = _TestReports(), session.items
    session.config.pluginmanager.register(reports)
    for number, item in enumerate(items):
        following = items[number + 1] if number + 1 < len(items) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if reports.failed:
            session._setupstate.teardown_exact(None)
            return KILLED, item.nodeid
    return SURVIVED, ""


def functions_of(module: Path) -> dict[Place, list[FunctionType]]:
    """Return the live functions of a module, by their position in the source."""
    places = {_where(code): place for place, code in codes(compile(module.read_text(), str(module), "exec"))}
    found: dict[Place, list[FunctionType]] = {place: [] for place in places.values()}
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename == str(module):
            code = thing.__code__
            if (place := places.get(_where(code))) is not None:
                found[place].append(thing)
    if not any(found.values()):
        sys.exit(f"no test imports {module}")
    return found


def _where(code: CodeType) -> tuple[str, tuple[object, ...]]:
    """Return a key of a code object; two of one name may begin in the same line."""
    return code.co_qualname, tuple(code.co_positions())


def codes(code: CodeType) -> Iterator[tuple[Place, CodeType]]:
    """Return the code objects of all functions of a compiled module, nested ones too."""
    seen: Counter[str] = Counter()
    todo = [code]
    while todo:
        for within in todo.pop().co_consts:
            if isinstance(within, CodeType):
                seen[within.co_qualname] += 1
                yield (within.co_qualname, seen[within.co_qualname]), within
                todo.append(within)
