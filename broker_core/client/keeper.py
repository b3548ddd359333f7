"""What keeps a client's subscriptions besides deliveries: leases renewed, notices answered, cancellations survived."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from broker_core.errors import ClientError
from broker_core.protocols import commands
from broker_core.protocols.replies import Cancelled, Notice, Resumed

if TYPE_CHECKING:
    from broker_core.client.subscription import Subscription

RENEWALS = 3
"""A lease is renewed that many times in its length."""


class Keeper:
    """One client's. `send` drops commands while there is no connection."""

    def __init__(
        self,
        subscriptions: Mapping[str, Subscription],
        send: Callable[[commands.Command], None],
        forget: Callable[[Subscription], None],
    ) -> None:
        self._subscriptions = subscriptions
        self._send = send
        self._forget = forget
        self.resume_token = ""
        """Of the last notice that had one: where the broker dropped this client."""

    def command_of(self, subscription: Subscription) -> commands.Subscribe:
        """The command that starts a subscription again, with the resume token where it asked for that."""
        command = subscription.command()
        if self.resume_token and command.resume_how is not None and command.resume is None:
            return msgspec.structs.replace(
                command, resume=self.resume_token, bookmark=None, on_gap=None, durability=None
            )
        return command

    def started(self, subscription: Subscription) -> None:
        """A subscription was accepted for the first time."""
        if subscription.lease_ms:
            self._renew_later(subscription)

    def _renew_later(self, subscription: Subscription) -> None:
        seconds = subscription.lease_ms / RENEWALS / 1_000
        asyncio.get_running_loop().call_later(seconds, self._renew, subscription)

    def _renew(self, subscription: Subscription) -> None:
        if self._subscriptions.get(subscription.id) is subscription:
            self._send(commands.Renew(id=subscription.id))
            self._renew_later(subscription)

    def noticed(self, notice: Notice) -> None:
        """A notice came: say so, and keep the token."""
        if notice.decision is not None:
            self._send(commands.Told(decision=notice.decision))
        if notice.resume_token:
            self.resume_token = notice.resume_token

    def cancelled(self, reply: Cancelled) -> None:
        """The broker ended a subscription. One with a lease or a snapshot comes back; others fail with the reason."""
        subscription = self._subscriptions.get(reply.id)
        if subscription is None:
            return
        if subscription.comes_back:
            delay = (reply.retry_after_ms or 0) / 1_000
            asyncio.get_running_loop().call_later(delay, self._again, subscription)
        else:
            self._forget(subscription)
            subscription.fail(
                ClientError.received(reply.code, reply.message, "Subscribe again when you can keep up.")
            )

    def _again(self, subscription: Subscription) -> None:
        if self._subscriptions.get(subscription.id) is subscription:
            self._send(subscription.command())

    def resumed(self, reply: Resumed) -> None:
        """How a resumed subscription goes on, and what it missed."""
        subscription = self._subscriptions.get(reply.id)
        if subscription is not None:
            subscription.resumed = reply
