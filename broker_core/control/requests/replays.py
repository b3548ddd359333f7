"""Requests about managed replays."""

from __future__ import annotations

import msgspec

from broker_core.connections.subscription_setup import make_behind_error
from broker_core.documents import requests
from broker_core.documents.replays import ReplayEntry, ReplayName
from broker_core.engine.engine import Engine
from broker_core.protocols import commands
from broker_core.protocols.names import check_client_name
from broker_core.replay.positions.file import ManagedReplayRecord

_OPTIONS = ("topic", "filter", "bookmark", "rate", "rate_max_gap", "paused", "conflation", "conflation_key")


class ReplayRequests:
    """Handlers of requests about managed replays. A change is stored before the reply.

    Raises:
        OperatorError: unknown_replay, replay_ended, replay_not_ended or replay_exists.
        ClientError: An error with which a client's own subscribe command would be refused.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def replays(self, request: requests.ListReplays) -> list[ReplayEntry]:
        """Return all managed replays."""
        return self._engine.managed.list_entries()

    async def create(self, request: requests.CreateReplay) -> ReplayEntry:
        """Create a managed replay, with the checks of a client's own subscribe command.

        In a group, it needs a confirmed end of the log, and is refused while that cannot be read.
        """
        client = check_client_name(request.client)
        options = {
            key: value for key in _OPTIONS if (value := getattr(request, key)) not in (None, "", False)
        }
        subscribe = {"bookmark": "0", **options, "c": "subscribe", "id": "managed", "managed": request.name}
        command = commands.parse_command(msgspec.json.encode(subscribe))
        assert isinstance(command, commands.Subscribe)
        if await self._engine.frontier.confirm() is None:
            raise make_behind_error(self._engine.instance)
        found = self._engine.subscriptions.find(command)
        return self._engine.managed.to_entry(await self._engine.managed.create(client, command, found.span))

    async def pause(self, request: requests.PauseReplay) -> ReplayEntry:
        """Pause a replay."""
        return await self._stored(self._engine.managed.pause(request.name))

    async def resume(self, request: requests.ResumeReplay) -> ReplayEntry:
        """Resume a paused replay."""
        return await self._stored(self._engine.managed.resume(request.name))

    async def rate(self, request: requests.SetReplayRate) -> ReplayEntry:
        """Set or remove the rate limit of a replay."""
        managed = self._engine.managed
        return await self._stored(
            managed.set_rate(request.name, request.rate or None, request.rate_max_gap or None)
        )

    async def cancel(self, request: requests.CancelReplay) -> ReplayEntry:
        """End a replay."""
        return await self._stored(self._engine.managed.cancel(request.name))

    async def forget(self, request: requests.ForgetReplay) -> ReplayName:
        """Delete an ended replay."""
        self._engine.managed.forget(request.name)
        await self._engine.position_store.save()
        return ReplayName(name=request.name)

    async def _stored(self, replay: ManagedReplayRecord) -> ReplayEntry:
        """Store the change of a replay, and return its entry."""
        await self._engine.position_store.save()
        return self._engine.managed.to_entry(replay)
