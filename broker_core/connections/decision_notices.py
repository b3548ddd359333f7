"""Notices of decisions: sent past the full outbox, and known to have arrived or not.

A client that knows the protocol answers a notice with `told`. Until then, or until the deadline, it isn't known:

    yes       the client said so
    unknown   every byte before and of the notice was handed to the kernel, and the client said nothing
    no        the deadline passed with bytes still waiting below the outbox, or the connection was lost before
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker_core.delivery.sink import Sink
from broker_core.protocols.replies import Reply

TELL_TIMEOUT_S = 2.0
"""How long a client has to read a notice before its connection is closed."""
MAX_UNTOLD = 100
"""Notices of one client that may wait for an answer; a reserve of some 100 KiB below the outbox."""
Settled = Callable[[str], None]


class DecisionNotices:
    """One connection's notices that aren't answered yet."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._waiting: dict[str, tuple[Settled, asyncio.TimerHandle]] = {}

    def send(self, identity: str, notice: Reply, settled: Settled) -> None:
        """Send a notice; `settled` is called once, with yes, no or unknown, within TELL_WITHIN_S."""
        if len(self._waiting) >= MAX_UNTOLD:
            settled("no")
            return
        self._sink.send_reply(notice)
        timer = asyncio.get_running_loop().call_later(TELL_TIMEOUT_S, self._over, identity)
        self._waiting[identity] = (settled, timer)

    def on_received(self, identity: str) -> None:
        self._settle(identity, "yes")

    def on_connection_lost(self) -> None:
        for identity in list(self._waiting):
            self._over(identity)

    def _over(self, identity: str) -> None:
        self._settle(identity, "unknown" if self._sink.is_flushed else "no")

    def _settle(self, identity: str, told: str) -> None:
        settled, timer = self._waiting.pop(identity, (None, None))
        if timer is not None:
            timer.cancel()
        if settled is not None:
            settled(told)
