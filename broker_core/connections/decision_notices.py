"""Notices of decisions: they overtake the full outbox, and the broker records whether the client got them.

A client that knows the protocol answers a notice with `told`. The result is one of:

    yes       the client has answered
    unknown   every byte up to the end of the notice was handed to the kernel, and the client has not answered
    no        at the deadline bytes still waited below the outbox, or the connection was lost before
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker_core.delivery.sink import Sink
from broker_core.protocols.replies import Reply

REPORT_TIMEOUT_S = 2.0
"""Seconds that a client has to answer a notice before its connection is closed."""
MAX_UNANSWERED = 100
"""Maximum number of one client's unanswered notices: some 100 KiB below the outbox."""
ResultCallback = Callable[[str], None]
"""Callback with the result of a notice: yes, no or unknown."""


class DecisionNotices:
    """Unanswered notices of one connection."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._waiting: dict[str, tuple[ResultCallback, asyncio.TimerHandle]] = {}

    def send(self, identity: str, notice: Reply, report_result: ResultCallback) -> None:
        """Send a notice. `report_result` is called once, with yes, no or unknown, within REPORT_TIMEOUT_S."""
        if len(self._waiting) >= MAX_UNANSWERED:
            report_result("no")
            return
        self._sink.send_reply(notice)
        timer = asyncio.get_running_loop().call_later(REPORT_TIMEOUT_S, self._give_up, identity)
        self._waiting[identity] = (report_result, timer)

    def on_received(self, identity: str) -> None:
        self._report_result(identity, "yes")

    def on_connection_lost(self) -> None:
        for identity in list(self._waiting):
            self._give_up(identity)

    def _give_up(self, identity: str) -> None:
        """Give up waiting for an answer.

        The result is `unknown` if all bytes were handed to the kernel, else `no`.
        """
        self._report_result(identity, "unknown" if self._sink.is_flushed else "no")

    def _report_result(self, identity: str, result: str) -> None:
        settled, timer = self._waiting.pop(identity, (None, None))
        if timer is not None:
            timer.cancel()
        if settled is not None:
            settled(result)
