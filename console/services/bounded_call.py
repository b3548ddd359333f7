"""Calls of other hosts with one deadline for everything: name look-up, handshake, request and answer.

The time-out of a socket applies to each read: a host that sends one byte now and then never exceeds it.
So the call runs in a thread. At the deadline the caller shuts down the call's sockets, which ends the thread.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar, cast

from broker_core.errors import OperatorError
from broker_core.names import is_host_name

CHECK_INTERVAL_S: Final = 0.25
"""Interval at which a waiting caller runs its `check`."""
MAX_ABANDONED: Final = 16
"""Maximum abandoned calls per process that haven't ended, for example in a name look-up.

At the limit new calls fail.
"""
T = TypeVar("T")
_abandoned: set[threading.Thread] = set()


class CallSockets:
    """Sockets of one call. Another thread can shut them down, even during a TLS handshake."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._is_abandoned = False

    def remaining_s(self) -> float:
        """Return the seconds until the deadline. Raises TimeoutError after it."""
        remaining_s = self._deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("timed out")
        return remaining_s

    def connect(self, host: str, port: int) -> socket.socket:
        """Open a TCP connection within the deadline, and return it.

        Raises:
            OSError: the connection failed; TimeoutError after the deadline or `give_up`.
        """
        if not is_host_name(host):
            raise OSError(f"{host[:80]!r} isn't a host name")
        made = socket.create_connection((host, port), self.remaining_s())
        with self._lock:
            if self._is_abandoned:
                made.close()
                raise TimeoutError("timed out")
            # A duplicate of the descriptor: wrapping in TLS detaches the first one.
            self._open.append(made.dup())
        return made

    def give_up(self) -> None:
        """Shut down all open connections, and refuse new ones. Callable from another thread."""
        with self._lock:
            self._is_abandoned = True
        self.close()

    def close(self) -> None:
        """Close the duplicated descriptors; after `give_up`, shut their connections down first."""
        with self._lock:
            sockets, self._open = self._open, []
        for one in sockets:
            if self._is_abandoned:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            one.close()


class _CallResult(Generic[T]):
    """Return value or exception of a call that runs in another thread."""

    def __init__(self) -> None:
        self.value: T | None = None
        self.problem: BaseException | None = None
        self.ended = threading.Event()


def call_within(seconds: float, call: Callable[[CallSockets], T], check: Callable[[], object] = bool) -> T:
    """Run `call` in a thread, and return its value or raise its exception.

    Args:
        seconds: Time limit for the whole call.
        call: Function that opens its connections through the `CallSockets` it receives.
        check: Called every `CHECK_INTERVAL_S` while the caller waits. An exception that it raises ends the
            wait.

    Raises:
        TimeoutError: the deadline passed.
        OperatorError: `call_refused` when `MAX_ABANDONED` abandoned calls still hang.
    """
    _abandoned.difference_update([thread for thread in _abandoned if not thread.is_alive()])
    if len(_abandoned) >= MAX_ABANDONED:
        raise OperatorError(
            "call_refused",
            f"{MAX_ABANDONED} calls to other hosts are unanswered.",
            "Check the hosts that don't answer.",
        )
    outcome, deadline = _CallResult[T](), time.monotonic() + seconds
    sockets = CallSockets(deadline)

    def run() -> None:
        try:
            outcome.value = call(sockets)
        except BaseException as problem:
            outcome.problem = problem
        finally:
            sockets.close()
            outcome.ended.set()

    thread = threading.Thread(target=run, name="bounded-call", daemon=True)
    thread.start()
    try:
        while not outcome.ended.wait(max(0.0, min(CHECK_INTERVAL_S, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"no complete answer within {seconds:g} s")
            check()
    except BaseException:
        sockets.give_up()
        _abandoned.add(thread)
        raise
    if outcome.problem is not None:
        raise outcome.problem
    return cast("T", outcome.value)  # the call has returned
