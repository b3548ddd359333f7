"""Commands that pause, resume and rate-limit one or several subscriptions of a client.

The requested state becomes part of each subscription's own command. If the connection is lost meanwhile, the
next connection subscribes with that state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from broker_core.client.time_limits import within
from broker_core.errors import ClientError, SluiceError
from broker_core.protocols import commands
from broker_core.protocols.field_info import get_tag
from broker_core.protocols.replies import Ack

STEERING_WORDS = tuple(
    get_tag(kind) for kind in (commands.PauseSubscriptions, commands.ResumeSubscriptions, commands.SetRate)
)


class PausableSubscription(Protocol):
    """Subscription that can be paused, resumed and rate-limited."""

    @property
    def id(self) -> str: ...
    def apply_options(self, **options: str | bool | None) -> dict[str, str | bool | None]:
        """Store delivery options for future subscribe commands.

        Returns the options that were in force before.
        """


@dataclass(slots=True, eq=False)
class _PendingRequest:
    """Command that waits for answers: its tag, the unanswered ids, and the waiter."""

    word: str
    left: set[str]
    done: asyncio.Future[None]


class SubscriptionControl:
    """Control of subscriptions: pause, resume and rate limits. Base class of `AsyncClient`."""

    def __init__(self, request_timeout: float | None) -> None:
        self._asked: list[_PendingRequest] = []
        self._request_timeout = request_timeout

    def _send(self, command: commands.Command) -> bool:
        """Send a command. Returns whether there was a connection."""
        raise NotImplementedError

    async def pause(self, subscriptions: Sequence[PausableSubscription]) -> None:
        """Pause several subscriptions in one command.

        The broker delivers nothing more until they are resumed. Messages in flight still arrive.

        Raises:
            ClientError: `not_steerable`, when one of them cannot be paused.
            TimeoutError: No answer within `request_timeout` seconds.
        """
        await self._steer(subscriptions, commands.PauseSubscriptions(ids=_ids(subscriptions)), paused=True)

    async def resume(self, subscriptions: Sequence[PausableSubscription]) -> None:
        """Resume several subscriptions in one command.

        Subscriptions with the same bookmark and rate share one replay: their messages arrive in the order of
        the journal.

        Raises:
            ClientError: `not_steerable`, when one of them cannot be resumed.
            TimeoutError: No answer within `request_timeout` seconds.
        """
        await self._steer(subscriptions, commands.ResumeSubscriptions(ids=_ids(subscriptions)), paused=False)

    async def set_rate(
        self, subscriptions: Sequence[PausableSubscription], rate: str | None, max_gap: str | None = None
    ) -> None:
        """Change the rate of several subscriptions in one command.

        Args:
            subscriptions: Subscriptions of this client.
            rate: New rate, such as "1000", "500KB" or "2X". None: no limit.
            max_gap: With a multiple such as "2X": longest pause between two records, such as "10s".

        Raises:
            ClientError: `bad_rate` or `not_steerable`.
            TimeoutError: No answer within `request_timeout` seconds.
        """
        command = commands.SetRate(ids=_ids(subscriptions), rate=rate, rate_max_gap=max_gap)
        await self._steer(subscriptions, command, rate=rate, rate_max_gap=max_gap)

    async def _steer(
        self,
        subscriptions: Sequence[PausableSubscription],
        command: commands.PauseSubscriptions | commands.ResumeSubscriptions | commands.SetRate,
        **options: str | bool | None,
    ) -> None:
        """Store the options, send the command and wait for the answers. A rejection restores the options."""
        before = [subscription.apply_options(**options) for subscription in subscriptions]
        if not self._send(command):
            return  # the next connection subscribes with it
        asked = _PendingRequest(
            get_tag(type(command)), set(command.ids), asyncio.get_running_loop().create_future()
        )
        self._asked.append(asked)
        try:
            async with within(self._request_timeout, asked.word):
                await asked.done
        except ClientError:
            for subscription, options_before in zip(subscriptions, before, strict=True):
                subscription.apply_options(**options_before)
            raise
        finally:
            if asked in self._asked:
                self._asked.remove(asked)

    # Called by the client with replies of the broker.

    def _steering_ended(self, error: SluiceError | None) -> None:
        """Complete pending requests after a lost connection.

        With `error` None they succeed, because the next connection subscribes with the requested state.
        Otherwise there is no next connection, and they fail.
        """
        asked, self._asked = self._asked, []
        for one in asked:
            if not one.done.done():
                one.done.set_result(None) if error is None else one.done.set_exception(error)

    def _steered(self, ack: Ack) -> None:
        """Record the broker's answer for one subscription."""
        for asked in self._asked:
            if asked.word == ack.of and ack.id in asked.left:
                asked.left.discard(ack.id)
                if not asked.left and not asked.done.done():
                    asked.done.set_result(None)
                return

    def _not_steered(self, word: str, error: ClientError) -> None:
        """Fail the oldest pending command of this kind.

        The broker rejects a command as a whole and answers in order.
        """
        for asked in self._asked:
            if asked.word == word and not asked.done.done():
                asked.done.set_exception(error)
                return


def _ids(subscriptions: Sequence[PausableSubscription]) -> list[str]:
    return [subscription.id for subscription in subscriptions]
