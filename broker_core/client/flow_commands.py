"""Commands that pause, resume and rate-limit one or several subscriptions of a client.

The requested state becomes part of each subscription's own command. If the connection is lost meanwhile, the
next connection subscribes with that state. A request that fails or times out restores the state before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from broker_core.client.time_limits import limit_time
from broker_core.errors import ClientError, SluiceError
from broker_core.protocols import commands
from broker_core.protocols.field_info import get_tag
from broker_core.protocols.replies import Ack

OPTION_COMMAND_TAGS: Final = tuple(
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
    """Command that the broker has not answered for every subscription.

    Attributes:
        tag: Tag of the command.
        options: Options that the command sets.
        unanswered: Subscriptions without an answer, by id.
        previous_options: Options before the command, by subscription id.
        done: Result for the caller.
        is_abandoned: Whether the caller no longer waits. The previous options are then in force, until the
            broker answers.
    """

    tag: str
    options: dict[str, str | bool | None]
    unanswered: dict[str, PausableSubscription]
    previous_options: dict[str, dict[str, str | bool | None]]
    done: asyncio.Future[None]
    is_abandoned: bool = False


class SubscriptionControl:
    """Control of subscriptions: pause, resume and rate limits. Base class of `AsyncClient`."""

    def __init__(self, request_timeout: float | None) -> None:
        self._requests: list[_PendingRequest] = []
        """Unanswered requests in the order of sending, which is the order of the broker's answers.

        An abandoned request stays until it is answered or the connection ends. Otherwise its late answer
        would count for the next request.
        """
        self._request_timeout = request_timeout

    def _send(self, command: commands.Command) -> bool:
        """Send a command. Returns whether there was a connection."""
        raise NotImplementedError

    async def pause(self, subscriptions: Sequence[PausableSubscription]) -> None:
        """Pause several subscriptions in one command.

        The broker delivers nothing more until they are resumed. Messages in flight still arrive.

        Raises:
            ClientError: `not_steerable`, when one of them cannot be paused.
            TimeoutError: No answer within `request_timeout` seconds; the options stay as they were. An answer
                that arrives later still counts.
        """
        await self._change_options(
            subscriptions, commands.PauseSubscriptions(ids=_ids(subscriptions)), paused=True
        )

    async def resume(self, subscriptions: Sequence[PausableSubscription]) -> None:
        """Resume several subscriptions in one command.

        Subscriptions with the same bookmark and rate share one replay: their messages arrive in the order of
        the journal.

        Raises:
            ClientError: `not_steerable`, when one of them cannot be resumed.
            TimeoutError: No answer within `request_timeout` seconds; the options stay as they were. An answer
                that arrives later still counts.
        """
        await self._change_options(
            subscriptions, commands.ResumeSubscriptions(ids=_ids(subscriptions)), paused=False
        )

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
            TimeoutError: No answer within `request_timeout` seconds; the options stay as they were. An answer
                that arrives later still counts.
        """
        command = commands.SetRate(ids=_ids(subscriptions), rate=rate, rate_max_gap=max_gap)
        await self._change_options(subscriptions, command, rate=rate, rate_max_gap=max_gap)

    async def _change_options(
        self,
        subscriptions: Sequence[PausableSubscription],
        command: commands.PauseSubscriptions | commands.ResumeSubscriptions | commands.SetRate,
        **options: str | bool | None,
    ) -> None:
        """Store the options, send the command and wait for the answers.

        After a rejection, a timeout or a cancellation the previous options are in force again. If the broker
        accepts the command later, its options are stored then.
        """
        by_id = {subscription.id: subscription for subscription in subscriptions}
        previous = {id: subscription.apply_options(**options) for id, subscription in by_id.items()}
        if not self._send(command):
            return  # the next connection subscribes with it
        done = asyncio.get_running_loop().create_future()
        request = _PendingRequest(get_tag(type(command)), options, by_id, previous, done)
        self._requests.append(request)
        try:
            async with limit_time(self._request_timeout, request.tag):
                await request.done
        except BaseException:
            if request in self._requests:
                request.is_abandoned = True
                self._restore_options(request)
            raise

    def _restore_options(self, request: _PendingRequest) -> None:
        """Undo a request for the subscriptions that the broker has not answered."""
        for id, subscription in request.unanswered.items():
            self._set_options_after(request, subscription, request.previous_options[id])

    def _set_options_after(
        self,
        request: _PendingRequest,
        subscription: PausableSubscription,
        options: dict[str, str | bool | None],
    ) -> None:
        """Store the options that are in force after a request.

        A later request for the same options overrides them, so they become its previous ones. Only without
        such a request, or if all of them are abandoned, they are in force now.
        """
        for later in self._requests[self._requests.index(request) + 1 :]:
            if later.options.keys() == options.keys() and (
                later.unanswered.get(subscription.id) is subscription
            ):
                later.previous_options[subscription.id] = options
                if not later.is_abandoned:
                    return
        subscription.apply_options(**options)

    # Called by the client with replies of the broker.

    def _end_requests(self, error: SluiceError | None) -> None:
        """Complete pending requests after a lost connection.

        With `error` None they succeed, because the next connection subscribes with the requested state.
        Otherwise there is no next connection, and they fail.
        """
        requests, self._requests = self._requests, []
        for request in requests:
            if not request.done.done():
                request.done.set_result(None) if error is None else request.done.set_exception(error)

    def _on_request_ack(self, ack: Ack) -> None:
        """Record the broker's answer for one subscription, in the oldest request that waits for it."""
        for request in self._requests:
            if request.tag != ack.of or (subscription := request.unanswered.get(ack.id or "")) is None:
                continue
            if request.is_abandoned:
                self._set_options_after(request, subscription, request.options)
            del request.unanswered[subscription.id]
            if not request.unanswered:
                self._requests.remove(request)
                if not request.done.done():
                    request.done.set_result(None)
            return

    def _on_request_error(self, tag: str, error: ClientError) -> None:
        """Fail the oldest pending command of this type.

        The broker rejects a command as a whole and answers in order.
        """
        for request in self._requests:
            if request.tag == tag:
                if not request.is_abandoned:
                    self._restore_options(request)
                self._requests.remove(request)
                if not request.done.done():
                    request.done.set_exception(error)
                return


def _ids(subscriptions: Sequence[PausableSubscription]) -> list[str]:
    return [subscription.id for subscription in subscriptions]
