"""What the control plane may ask about managed replays; see `control` for the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from broker_core.errors import OperatorError
from broker_core.protocols import commands
from broker_core.protocols.names import check_client_name
from broker_core.protocols.native import parse_command
from broker_core.runtime.control import Handler
from broker_core.subscriptions.managed import ManagedReplay

if TYPE_CHECKING:
    from broker_core.runtime.broker import Broker

_ASKED = ("topic", "filter", "bookmark", "rate", "rate_max_gap", "paused", "conflation", "conflation_key")


def replay_handlers(broker: Broker) -> dict[str, Handler]:
    """The table of requests. Each that changes something answers with the replay when that is stored."""
    answers = _Answers(broker)
    words = ("create", "pause", "resume", "rate", "cancel", "forget")
    return {"replays": answers.replays} | {f"replay_{word}": getattr(answers, word) for word in words}


class _Answers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def _host(self) -> Any:
        return self._broker.host

    async def replays(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self._host.managed.listed()
        return listed

    async def create(self, request: dict[str, Any]) -> dict[str, Any]:
        client = check_client_name(_text(request, "client"))
        asked = {key: request[key] for key in _ASKED if request.get(key) not in (None, "")}
        # Checked as a client's own subscribe would be.
        command = parse_command(orjson.dumps({
            "bookmark": "0", **asked, "c": "subscribe", "id": "managed", "managed": _text(request, "name"),
        }))
        assert isinstance(command, commands.Subscribe)
        return await self._stored(self._host.managed.create(client, command, self._host.subscribing.span_of(command)))

    async def pause(self, request: dict[str, Any]) -> dict[str, Any]:
        return await self._stored(self._host.managed.pause(_text(request, "name")))

    async def resume(self, request: dict[str, Any]) -> dict[str, Any]:
        return await self._stored(self._host.managed.resume(_text(request, "name")))

    async def rate(self, request: dict[str, Any]) -> dict[str, Any]:
        rate, max_gap = (request.get(key) or None for key in ("rate", "rate_max_gap"))
        return await self._stored(self._host.managed.set_rate(_text(request, "name"), rate, max_gap))

    async def cancel(self, request: dict[str, Any]) -> dict[str, Any]:
        return await self._stored(self._host.managed.cancel(_text(request, "name")))

    async def forget(self, request: dict[str, Any]) -> dict[str, Any]:
        name = _text(request, "name")
        self._host.managed.forget(name)
        await self._host.save_replays()
        return {"name": name}

    async def _stored(self, replay: ManagedReplay) -> dict[str, Any]:
        await self._host.save_replays()
        shown: dict[str, Any] = self._host.managed.shown(replay, self._host.dispatched_sequence, self._host.now_ns())
        return shown


def _text(request: dict[str, Any], key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= 64:
        raise OperatorError("bad_request", f"{key} must be a text of 1 to 64 characters.", "Give it.")
    return value
