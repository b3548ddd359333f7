"""All links of a broker, kept in accordance with the policy in force."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from broker_core.config import PolicyDocument
from broker_core.documents.replication import LinkEntry
from broker_core.engine.engine import Engine
from broker_core.errors import OperatorError
from broker_core.names import LINK_PREFIX
from broker_core.replay.positions.file import ManagedReplayRecord
from broker_core.sites.link import SiteLink


class SiteLinkManager:
    """The links of one broker. `apply` starts and closes them when the policy's destinations change."""

    def __init__(self, engine: Engine, secrets: Path | None) -> None:
        """Create a manager without links. `secrets`: the file with the links' credentials."""
        self._engine, self._secrets = engine, secrets
        self._links: dict[str, SiteLink] = {}
        self._removed_limits: dict[str, int] = {}
        """Newest record that removed links can have carried, by instance."""
        engine.confirmations.list_links = self._list_confirmed
        if engine.frontier.end is None:  # before anything is published
            for replay in engine.managed.list_entries():
                if replay.client == replay.name and replay.name.startswith(LINK_PREFIX):
                    engine.managed.limit_carried(replay.name, engine.frontier.durable)

    def _list_confirmed(self) -> Iterator[tuple[str, int]]:
        for link in list(self._links.values()):
            if link.settings.is_sync:
                yield link.client, link.confirmed_sequence

    async def apply(self, policy: PolicyDocument) -> None:
        """Close links whose settings changed, and start new ones.

        The position of a destination that the policy no longer lists is removed, so that it doesn't pin the
        log.
        """
        destinations = {one.name: one for one in policy.destinations}
        for name, link in list(self._links.items()):
            if destinations.get(name) != link.settings:
                await self._links.pop(name).close()
        self._remove_unlisted(destinations)
        for name, settings in destinations.items():
            if name not in self._links:
                self._links[name] = SiteLink(self._engine, settings, self._secrets, self._removed_limits)

    def _remove_unlisted(self, destinations: Collection[str]) -> None:
        """Cancel and remove managed replays of destinations that aren't in `destinations`."""
        managed = self._engine.managed
        for replay in managed.list_entries():
            name = replay.name.removeprefix(LINK_PREFIX)
            if replay.client == replay.name == f"{LINK_PREFIX}{name}" and name not in destinations:
                with suppress(OperatorError):
                    self._pass_limit_on(managed.get(replay.name))
                    if not replay.ended_at:
                        managed.cancel(replay.name)
                    managed.forget(replay.name)

    def _pass_limit_on(self, replay: ManagedReplayRecord) -> None:
        """Keep the limit of a link that is removed for other links to its instance."""
        instance, newest = replay.carried_to, replay.carried_limit
        if instance:
            self._engine.managed.pass_limits_on(replay)
            self._removed_limits[instance] = max(newest, self._removed_limits.get(instance, 0))

    def list_entries(self) -> list[LinkEntry]:
        """Return the links for the control plane, sorted by name."""
        return [self._links[name].to_entry() for name in sorted(self._links)]

    async def close(self) -> None:
        """Close all links. Their positions remain."""
        for link in self._links.values():
            await link.close()
        self._links.clear()
