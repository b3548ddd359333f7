"""Quotas: what one user, and one client, may take of an instance, so that nobody takes it all.

Whoever proved nothing is a user by its address. What is kept while clients are away belongs to the owner of the client's name;
what is kept under names that nobody owns is taken together, as one user's.

A quota on publishing is kept to by reading more slowly; all others by refusing what is new. Nothing that is there is taken away
when a revision makes a quota smaller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from broker_core.config import PolicyDocument
from broker_core.config.preset_settings import QUOTAS
from broker_core.connections.admission import peer_address
from broker_core.connections.connection_view import ClientIdentity, ConnectionView
from broker_core.connections.name_owners import ClientNameOwners
from broker_core.errors import ClientError
from broker_core.journal.journal import Journal
from broker_core.replay.positions.file import SHARED_OWNER
from broker_core.replay.positions.store import PositionStore
from broker_core.slow_clients.rules.presets import preset_layers
from broker_core.slow_clients.rules.scopes import RuleSubject


@dataclass(slots=True)
class TokenBucket:
    """Messages that may still be published at once; below zero they were, and are waited for."""

    left: float = 0.0
    at: int = -1
    """ns of the clock that never jumps; -1: it was never used."""

    def consume(self, count: int, rate: int, now: int) -> float:
        """Take so many at so many a second; how long to wait before the next, in seconds."""
        if self.at < 0:
            self.left, self.at = float(rate), now
        self.left = min(self.left + (now - self.at) * rate / 1e9, float(rate)) - count
        self.at = now
        return max(-self.left / rate, 0.0)


@dataclass(slots=True)
class QuotaUsage:
    """What somebody takes now."""

    connections: int = 0
    subscriptions: int = 0
    topics: set[str] = field(default_factory=set)
    published: TokenBucket = field(default_factory=TokenBucket)


class Quotas:
    """An instance's. Who is connected is in `_users`; the limits of a member are looked up once."""

    def __init__(
        self,
        policy: PolicyDocument,
        keeps: PositionStore,
        owners: ClientNameOwners,
        journal: Journal,
        now: Callable[[], int],
    ) -> None:
        self._keeps = keeps
        self._owners = owners
        self._journal = journal
        self._now = now
        self._users: dict[str, QuotaUsage] = {}
        self._clients: dict[ConnectionView, tuple[str, QuotaUsage]] = {}
        self.apply(policy)

    def apply(self, policy: PolicyDocument) -> None:
        """Put a revision in force."""
        self._layers = preset_layers(policy, "quotas")
        self._limits: dict[tuple[str, str], Mapping[str, int | None]] = {}

    def limits_for(self, transport: str, user: str) -> Mapping[str, int | None]:
        """The limits of a user's clients on a transport, by the settings' names."""
        known = self._limits.get((transport, user))
        if known is None:
            if len(self._limits) >= MAX_KNOWN:
                self._limits.clear()
            known = self._limits[transport, user] = self._layers.values(RuleSubject(transport, user))
        return known

    # Who is there.

    def check_logon(
        self, connection: ConnectionView, identity: ClientIdentity, replaces: ConnectionView | None
    ) -> None:
        """ClientError connections_over_quota when a user has enough connections without this one."""
        key = _key(connection, identity)
        use = self._users.get(key)
        used = use.connections if use is not None else 0
        if replaces is not None and self._clients.get(replaces, ("", None))[0] == key:
            used -= 1
        limit = self.limits_for(connection.transport, identity.resume_key)["user_connections"]
        if limit is not None and used >= limit:
            raise _over("user_connections", used, limit, "connections_over_quota")

    def on_joined(self, connection: ConnectionView, identity: ClientIdentity) -> None:
        """A client has logged on."""
        key = _key(connection, identity)
        self._users.setdefault(key, QuotaUsage()).connections += 1
        self._clients[connection] = (key, QuotaUsage())

    def on_left(self, connection: ConnectionView) -> None:
        """A client is gone, with its subscriptions."""
        key, own = self._clients.pop(connection, ("", None))
        if own is None:
            return
        use = self._users[key]
        use.connections -= 1
        use.subscriptions -= own.subscriptions
        if not use.connections:
            del self._users[key]

    # What it asks for.

    def check_subscription(self, connection: ConnectionView, preparing: int = 0) -> None:
        """ClientError over_quota when a client, or its user, has enough subscriptions with those that are under way."""
        for name, used, limit in self._limited(connection, "subscriptions"):
            if (number := used.subscriptions + preparing) >= limit:
                raise _over(name, number, limit, "over_quota")

    def adjust_subscriptions(self, connection: ConnectionView, number: int) -> None:
        """It has so many more subscriptions, or less."""
        for used in self._uses(connection):
            used.subscriptions += number

    def check_durable(self, connection: ConnectionView, client: str, name: str) -> None:
        """ClientError over_quota when a durable subscription would be one too many. One that there is may go on."""
        if (client, name) not in self._keeps.durables:
            self._check_kept(connection, client, "durables", self._keeps.durables_of)

    def check_replay(self, connection: ConnectionView) -> None:
        """The same of a new managed replay."""
        going_on = Counter(one.client for one in self._keeps.replays.values() if not one.ended)
        self._check_kept(connection, connection.name, "replays", going_on)

    def _check_kept(self, connection: ConnectionView, client: str, what: str, numbers: Counter[str]) -> None:
        limits, owner = self._limits_of(connection), self._owners.user_of(client)
        # Who owns what is asked once for each client: one may begin a thousand in a turn.
        users = sum(number for name, number in numbers.items() if self._owners.user_of(name) == owner)
        # What is shared is no single client's, and all of it has one name.
        own = 0 if client == SHARED_OWNER else numbers[client]
        for name, used in ((f"client_{what}", own), (f"user_{what}", users)):
            limit = limits[name]
            if limit is not None and used >= limit:
                raise _over(name, used, limit, "over_quota")
        self.check_pinned(connection, client)

    def check_pinned(self, connection: ConnectionView, client: str) -> None:
        """ClientError over_quota when what is kept for a client's name, or its owner, holds enough of the log."""
        limits = self._limits_of(connection)
        limit = limits["client_pinned_bytes"]
        if limit is not None and (used := self._pinned_by(client)) > limit:
            raise _over("client_pinned_bytes", used, limit, "over_quota")
        limit, user = limits["user_pinned_bytes"], self._owners.user_of(client)
        if limit is not None and (used := self._journal.bytes_pinned_by(user)) > limit:
            raise _over("user_pinned_bytes", used, limit, "over_quota")

    def _pinned_by(self, client: str) -> int:
        kept = (*self._keeps.durables.values(), *self._keeps.replays.values())
        held = [one.pinned_from for one in kept if one.client == client]
        held += [
            target.pinned_from
            for member in self._clients
            if member.name == client
            for target in member.subscriptions.values()
        ]
        firsts = [first for first in held if first is not None]
        return self._journal.bytes_pinned_from(min(firsts)) if firsts else 0

    def charge_publish(self, connection: ConnectionView, topics: Sequence[str], count: int) -> float:
        """A client publishes so many messages to these topics: how long nothing more is to be read from it then, in seconds.

        ClientError over_quota when that would be one topic too many; then nothing was counted.
        """
        found = self._clients.get(connection)
        if found is None:
            return 0.0
        key, own = found
        user, limits = self._users[key], self._limits_of(connection)
        if not own.topics.issuperset(topics):
            self._learn(topics, ((own, "client_topics"), (user, "user_topics")), limits)
        now, wait = self._now(), 0.0
        for use, name in ((own, "client_publish_rate"), (user, "user_publish_rate")):
            if (rate := limits[name]) is not None:
                wait = max(wait, use.published.consume(count, rate, now))
        return wait

    def _learn(
        self,
        topics: Sequence[str],
        uses: tuple[tuple[QuotaUsage, str], ...],
        limits: Mapping[str, int | None],
    ) -> None:
        for use, name in uses:
            limit = limits[name]
            used = len(use.topics)
            if limit is not None and used + len(set(topics) - use.topics) > limit:
                raise _over(name, used, limit, "over_quota")
        for use, _ in uses:
            use.topics.update(topics)

    def _uses(self, connection: ConnectionView) -> tuple[QuotaUsage, ...]:
        found = self._clients.get(connection)
        return (found[1], self._users[found[0]]) if found is not None else ()

    def _limits_of(self, connection: ConnectionView) -> Mapping[str, int | None]:
        identity = connection.identity
        return self.limits_for(connection.transport, identity.resume_key if identity is not None else "")

    def _limited(self, connection: ConnectionView, what: str) -> Iterable[tuple[str, QuotaUsage, int]]:
        limits = self._limits_of(connection)
        for name, use in zip((f"client_{what}", f"user_{what}"), self._uses(connection), strict=False):
            if (limit := limits[name]) is not None:
                yield name, use, limit


MAX_KNOWN = 10_000
"""Users whose limits are remembered."""


def _key(connection: ConnectionView, identity: ClientIdentity) -> str:
    """As whom it counts. No user's name has an @ at its beginning."""
    return identity.resume_key if identity.proven else f"@{peer_address(connection.sink.remote)}"


def _over(quota: str, used: int, limit: int, code: str) -> ClientError:
    row = QUOTAS[quota]
    whose = "You have" if quota.startswith("client_") else "Your user has"
    return ClientError(
        code,
        f"{whose} {used:,} {row.unit} of the {limit:,} that {quota} allows.",
        "End or delete what isn't needed, or ask the operator for a larger quota.",
        quota=quota,
        used=used,
        limit=limit,
        unit=row.unit,
    )
