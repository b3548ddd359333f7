"""How a connection ends. STOMP has one word for that: an ERROR, which is the last frame; and DISCONNECT's receipt.

So the end of one subscription by a policy is the end of its connection, told with the figures of the decision.
"""

from __future__ import annotations

import asyncio

import msgspec

from broker_core.protocols import replies
from broker_core.protocols.stomp.replies import Last, error_frame
from broker_core.transports.stomp.talk import Talk


class Farewell:
    """One client's."""

    __slots__ = ("_cancelled", "_said", "_talk", "telling")

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._said = False
        self._cancelled: replies.SubscriptionCancelled | None = None
        self.telling = ""
        """The decision that the client was told last, before its connection is closed."""

    def say(self, reply: Last, receipt: str = "") -> None:
        """The last frame; what would follow it isn't said."""
        if not self._said:
            self._said = True
            talk = self._talk
            talk.say(error_frame(reply, receipt, talk.version), last=True)

    def error(self, reply: replies.ErrorReply, receipt: str) -> None:
        """What the client asked for can't be had."""
        self.say(reply, receipt)
        self._talk.connection.close(reply.code, reply.message)

    def leave(self, receipt: str) -> None:
        """DISCONNECT, and all that came before it is done."""
        self._said = True
        self._talk.flush()
        self._talk.say_last_receipt(receipt)
        self._talk.connection.leave("closed")
        self._talk.out.end()

    def cancelled(self, reply: replies.SubscriptionCancelled) -> None:
        """A policy ended a subscription: what the decision says of it comes in the same turn."""
        self._cancelled = reply
        asyncio.get_running_loop().call_soon(self._without_notice)

    def notice(self, reply: replies.DecisionNotice) -> None:
        """What a policy decided; said when it is the end of something."""
        cancelled = self._cancelled
        if self._talk.connection.closed:
            self.telling = reply.decision or ""
            self.say(reply)
        elif cancelled is not None and cancelled.decision == reply.decision:
            self._cancelled = None
            told = msgspec.structs.replace(
                reply,
                resume=cancelled.bookmark or reply.resume,
                subscription=cancelled.id,
                retry_after_ms=cancelled.retry_after_ms,
            )
            self.say(told)
            self._talk.connection.close(cancelled.code, cancelled.message)

    def _without_notice(self) -> None:
        """It was cancelled and nothing more was said of it: silence would be worse."""
        cancelled, self._cancelled = self._cancelled, None
        if cancelled is not None and not self._talk.connection.closed:
            self.say(cancelled)
            self._talk.connection.close(cancelled.code, cancelled.message)
