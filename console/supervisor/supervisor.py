"""Supervision of all children: start each when its dependencies are ready, stop all in reverse order."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from console.supervisor.backoff import RestartBackoff
from console.supervisor.child import ChildProcess
from console.supervisor.child_specs import ChildSpec
from console.supervisor.logs import ChildLog

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_REQUEST_S = 1.0
"""Seconds in which a repeated signal is the same request: Ctrl-C reaches make too, which passes it on."""


class Supervisor:
    """Runner of the children, until a stop signal, or until all children that run once are done.

    say          shows a sentence to the operator
    when_ready   called once, when every child has been ready
    show_output  also prints the children's output in the terminal, each line with its child's name
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        directory: Path,
        environment: Mapping[str, str],
        log_directory: Path,
        print_line: Callable[[str], None],
        when_ready: Callable[[], None],
        *,
        show_output: bool = False,
        backoff: RestartBackoff | None = None,
    ) -> None:
        self._specs = check_needs(specs)
        self._print_line = print_line
        self._when_ready = when_ready
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._stop_requested_at = 0.0
        self.children: dict[str, ChildProcess] = {}
        for spec in self._specs:
            echo = self._echo(spec.name) if show_output else None
            log = ChildLog(log_directory / f"{spec.name}.log", echo)
            self.children[spec.name] = ChildProcess(
                spec, directory, environment, log, print_line, self._hurry, backoff
            )

    async def run(self) -> int:
        """Start all children, wait for a stop, and stop them. Return 0, or 1 if a child had to be killed."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self.request_stop, number.name)
        running = {name: asyncio.create_task(self._start(child)) for name, child in self.children.items()}
        announcing = asyncio.create_task(self._announce())
        stopping = asyncio.create_task(self._stop.wait())
        finished = asyncio.create_task(self._wait_for_children())
        await asyncio.wait({stopping, finished}, return_when=asyncio.FIRST_COMPLETED)
        for task in (announcing, stopping, finished):
            task.cancel()
        await self._stop_all(running)
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
        return 1 if any(child.killed for child in self.children.values()) else 0

    def request_stop(self, reason: str) -> None:
        """Stop all children in order at the first request; at a second one, stop waiting for them."""
        now = time.monotonic()
        if not self._stop.is_set():
            self._stop_requested_at = now
            self._print_line(
                f"{reason}: stopping all processes, in reverse order of the start (again: without waiting)"
            )
            self._stop.set()
        elif now - self._stop_requested_at > SAME_REQUEST_S and not self._hurry.is_set():
            self._print_line(f"{reason} again: stopping the remaining processes immediately")
            self._hurry.set()

    async def _start(self, child: ChildProcess) -> None:
        """Run a child once its dependencies are ready."""
        for name in child.spec.needs:
            await _wait_for_first(self.children[name].ready, child.stopping)
        await child.run_until_stopped()

    async def _announce(self) -> None:
        """Call `when_ready` once every child is ready or done."""
        for child in self.children.values():
            await _wait_for_first(child.ready, child.done)
        self._when_ready()

    async def _wait_for_children(self) -> None:
        """Wait until every child is done."""
        for child in self.children.values():
            await child.done.wait()

    async def _stop_all(self, running: Mapping[str, asyncio.Task[None]]) -> None:
        """Stop the children one after the other, in reverse order of the start."""
        for name in stop_order(self._specs):
            child = self.children[name]
            was_running = child.pid is not None
            child.stopping.set()
            await running[name]
            if was_running:
                self._print_line(f"{name} has stopped")

    def _echo(self, name: str) -> Callable[[str], None]:
        return lambda line: self._print_line(f"{name:<8}| {line}")


def stop_order(specs: Sequence[ChildSpec]) -> list[str]:
    """Return the names in the order of stopping: each child stops before those it depends on. Pure."""
    return [spec.name for spec in reversed(specs)]


def check_needs(specs: Sequence[ChildSpec]) -> Sequence[ChildSpec]:
    """Return the specifications unchanged, after a check of their names and order. Pure.

    Raises:
        ValueError: a name occurs twice, or a child comes before one that it needs.
    """
    names: set[str] = set()
    for spec in specs:
        if spec.name in names:
            raise ValueError(f"two children are named {spec.name}")
        if missing := [need for need in spec.needs if need not in names]:
            raise ValueError(f"{spec.name} needs {missing[0]}, which doesn't start before that process")
        names.add(spec.name)
    return specs


async def _wait_for_first(one: asyncio.Event, other: asyncio.Event) -> None:
    """Wait for the first of two events."""
    tasks = {asyncio.create_task(one.wait()), asyncio.create_task(other.wait())}
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
