"""Calls of other hosts with one deadline for everything: name look-up, handshake, request and answer.

The time-out of a socket applies to each read: a host that sends one byte now and then never exceeds it.
So the call runs in a thread. At the deadline the caller shuts down the call's sockets, which ends the thread.
Nothing ends a name look-up. So look-ups run in threads of their own, one per name at a time, and a hung one
delays only calls to its name.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar, cast

from broker_core.errors import OperatorError
from broker_core.names import is_host_name

CHECK_INTERVAL_S: Final = 0.25
"""Interval at which a waiting caller runs its `check`."""
MAX_ABANDONED: Final = 16
"""Maximum abandoned calls per process that haven't ended. At the limit new calls fail."""
MAX_LOOKUPS: Final = 64
"""Maximum look-ups per process at the same time. At the limit, calls to further names fail."""
T = TypeVar("T")
AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]
"""Address of a host, as `socket.getaddrinfo` returns it."""
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
            OperatorError: call_refused, when too many look-ups hang.
        """
        if not is_host_name(host):
            raise OSError(f"{host[:80]!r} isn't a host name")
        made = self._connect_first(self.resolve(host, port, socket.SOCK_STREAM))
        with self._lock:
            if self._is_abandoned:
                made.close()
                raise TimeoutError("timed out")
            # A duplicate of the descriptor: wrapping in TLS detaches the first one.
            self._open.append(made.dup())
        return made

    def _connect_first(self, addresses: Sequence[AddressInfo]) -> socket.socket:
        """Connect to the first address that accepts. Raises OSError of the last one."""
        for *_, target in addresses[:-1]:
            with suppress(OSError):
                return socket.create_connection(target[:2], self.remaining_s())
        return socket.create_connection(addresses[-1][-1][:2], self.remaining_s())

    def resolve(self, host: str, port: int, kind: socket.SocketKind) -> list[AddressInfo]:
        """Return the addresses of a host, at least one. Raises as `look_up` does."""
        with suppress(socket.gaierror):
            return list(socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST))

        def ask() -> list[AddressInfo]:
            return list(socket.getaddrinfo(host, port, type=kind))

        return self.look_up(f"{host}:{port}/{kind}", ask)

    def look_up(self, key: str, ask: Callable[[], T]) -> T:
        """Return the result of a name look-up. Calls with the same `key` share one that is under way.

        Raises:
            OSError: the look-up failed; TimeoutError after the deadline.
            OperatorError: call_refused, when `MAX_LOOKUPS` others are under way.
        """
        outcome = _start_lookup(key, ask)
        if not outcome.ended.wait(self.remaining_s()):
            raise TimeoutError("the name look-up timed out")
        return outcome.result()

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

    def run(self, call: Callable[[], T]) -> None:
        """Run a call, and store what it returns or raises."""
        try:
            self.value = call()
        except BaseException as problem:
            self.problem = problem
        finally:
            self.ended.set()

    def result(self) -> T:
        """Return the value of a call that has ended, or raise its exception."""
        if self.problem is not None:
            raise self.problem
        return cast("T", self.value)


_lookups: dict[str, _CallResult[Any]] = {}
_lookups_lock = threading.Lock()


def _start_lookup(key: str, ask: Callable[[], T]) -> _CallResult[T]:
    """Return the look-up of `key` that is under way, or start one. Raises OperatorError call_refused."""
    with _lookups_lock:
        for ended in [known for known, outcome in _lookups.items() if outcome.ended.is_set()]:
            del _lookups[ended]
        if (known := _lookups.get(key)) is not None:
            return known
        if len(_lookups) >= MAX_LOOKUPS:
            raise OperatorError(
                "call_refused",
                f"{MAX_LOOKUPS} look-ups of host names are unanswered.",
                "Check the name servers, or use addresses instead of names.",
            )
        started = _lookups[key] = _CallResult[T]()
    threading.Thread(target=started.run, args=(ask,), name="name-look-up", daemon=True).start()
    return started


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

    def run_and_close() -> T:
        try:
            return call(sockets)
        finally:
            sockets.close()

    thread = threading.Thread(target=outcome.run, args=(run_and_close,), name="bounded-call", daemon=True)
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
    return outcome.result()
