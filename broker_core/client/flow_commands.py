"""Pausing, resuming and pacing subscriptions from the client, one or many in one command.

What was asked for is part of each subscription's own command, so a connection that is lost meanwhile costs nothing:
the next one subscribes with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from broker_core.client.time_limits import within
from broker_core.errors import ClientError, SluiceError
from broker_core.protocols import commands
from broker_core.protocols.field_info import tag_of
from broker_core.protocols.replies import Ack

STEERING_WORDS = tuple(
    tag_of(kind) for kind in (commands.PauseSubscriptions, commands.ResumeSubscriptions, commands.SetRate)
)


class PausableSubscription(Protocol):
    """A subscription, as far as steering goes."""

    @property
    def id(self) -> str: ...
    def apply_options(self, **options: str | bool | None) -> dict[str, str | bool | None]:
        """Note options of its command; what was in force before."""


@dataclass(slots=True, eq=False)
class _PendingRequest:
    word: str
    left: set[str]
    done: asyncio.Future[None]


class SubscriptionControl:
    """A client's way to steer its subscriptions."""

    def __init__(self, request_timeout: float | None) -> None:
        self._asked: list[_PendingRequest] = []
        self._request_timeout = request_timeout

    def _send(self, command: commands.Command) -> bool:
        """Whether there is a connection that took the command."""
        raise NotImplementedError

    async def pause(self, subscriptions: Sequence[PausableSubscription]) -> None:
        """Pause several in one command: nothing is delivered until they are resumed. What is on its way still comes."""
        await self._steer(subscriptions, commands.PauseSubscriptions(ids=_ids(subscriptions)), paused=True)

    async def resume(self, subscriptions: Sequence[PausableSubscription]) -> None:
        """Resume several in one command. Those that stand at the same bookmark, with the same rate, share one replay:
        their messages come in the journal's order across them."""
        await self._steer(subscriptions, commands.ResumeSubscriptions(ids=_ids(subscriptions)), paused=False)

    async def set_rate(
        self, subscriptions: Sequence[PausableSubscription], rate: str | None, max_gap: str | None = None
    ) -> None:
        """Another rate of several in one command, or with None none, from now on; see Subscription.set_rate."""
        command = commands.SetRate(ids=_ids(subscriptions), rate=rate, rate_max_gap=max_gap)
        await self._steer(subscriptions, command, rate=rate, rate_max_gap=max_gap)

    async def _steer(
        self,
        subscriptions: Sequence[PausableSubscription],
        command: commands.PauseSubscriptions | commands.ResumeSubscriptions | commands.SetRate,
        **options: str | bool | None,
    ) -> None:
        before = [subscription.apply_options(**options) for subscription in subscriptions]
        if not self._send(command):
            return  # the next connection subscribes with it
        asked = _PendingRequest(
            tag_of(type(command)), set(command.ids), asyncio.get_running_loop().create_future()
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

    # What the client hears.

    def _steering_ended(self, error: SluiceError | None) -> None:
        """The connection was lost: subscriptions ask the next for what they were steered to. With an error there is none."""
        asked, self._asked = self._asked, []
        for one in asked:
            if not one.done.done():
                one.done.set_result(None) if error is None else one.done.set_exception(error)

    def _steered(self, ack: Ack) -> None:
        for asked in self._asked:
            if asked.word == ack.of and ack.id in asked.left:
                asked.left.discard(ack.id)
                if not asked.left and not asked.done.done():
                    asked.done.set_result(None)
                return

    def _not_steered(self, word: str, error: ClientError) -> None:
        """A command was refused, whole. Answers come in the order of the commands."""
        for asked in self._asked:
            if asked.word == word and not asked.done.done():
                asked.done.set_exception(error)
                return


def _ids(subscriptions: Sequence[PausableSubscription]) -> list[str]:
    return [subscription.id for subscription in subscriptions]
