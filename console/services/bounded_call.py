"""Calls of other hosts with one deadline: name look-up, handshake, request and every byte of the answer.

A time-out of a socket is of each read. A host that sends a byte now and then keeps within it for ever. So the
call is made in a thread, and its caller gives it up: the sockets are shut down, which ends the thread as well.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar, cast

from broker_core.errors import OperatorError

LOOK_INTERVAL_S: Final = 0.25
MAX_LEFT: Final = 16
"""Calls of one process that were given up and haven't ended, as in a look-up of a name; then none is begun."""
T = TypeVar("T")
_left: set[threading.Thread] = set()


class CallSockets:
    """The sockets of one call. They can be shut down from another thread, also during a TLS handshake."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._given_up = False

    def left_s(self) -> float:
        """Return the seconds until the deadline. Raises TimeoutError when there are none."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def connect(self, host: str, port: int) -> socket.socket:
        """Connect within the deadline. Raises OSError."""
        made = socket.create_connection((host, port), self.left_s())
        with self._lock:
            if self._given_up:
                made.close()
                raise TimeoutError("timed out")
            self._open.append(made.dup())  # TLS takes the first one's descriptor away
        return made

    def give_up(self) -> None:
        """Shut down whatever is open; nothing is opened any more."""
        with self._lock:
            self._given_up = True
        self.close()

    def close(self) -> None:
        """Close the second handles."""
        with self._lock:
            opened, self._open = self._open, []
        for one in opened:
            if self._given_up:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            one.close()


class _CallResult(Generic[T]):
    """The result of a call, or what it raised."""

    def __init__(self) -> None:
        self.value: T | None = None
        self.problem: BaseException | None = None
        self.ended = threading.Event()


def call_within(seconds: float, call: Callable[[CallSockets], T], check: Callable[[], object] = bool) -> T:
    """Return what `call` returns, or raise what it raises. `check` is called often meanwhile, and may raise.

    Raises TimeoutError at the deadline, and OperatorError call_refused when too many calls hang already.
    """
    _left.difference_update([thread for thread in _left if not thread.is_alive()])
    if len(_left) >= MAX_LEFT:
        raise OperatorError(
            "call_refused",
            f"{MAX_LEFT} calls of other hosts hang.",
            "See which hosts don't answer, and why.",
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
        while not outcome.ended.wait(max(0.0, min(LOOK_INTERVAL_S, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"no whole answer within {seconds:g} s")
            check()
    except BaseException:
        sockets.give_up()
        _left.add(thread)
        raise
    if outcome.problem is not None:
        raise outcome.problem
    return cast("T", outcome.value)  # the call has returned
