"""Quotas: limits of what one user and one client may use of an instance.

An unauthenticated client counts as a user by its address. State stored while clients are away belongs to the
owner of the client's name. State stored under names without an owner counts together, as one user's.

A quota on publishing slows the reading down. All other quotas refuse new requests. A revision that lowers a
quota removes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
    """Token bucket of messages that may be published immediately.

    Below zero it is in debt, and the client must wait.
    """

    remaining: float = 0.0
    at: int = -1
    """Monotonic time of `remaining`, ns; -1: never used."""

    def consume(self, count: int, rate: int, now: int) -> float:
        """Remove `count` tokens at `rate` tokens a second.

        Return the seconds to wait before the next call.
        """
        if self.at < 0:
            self.remaining, self.at = float(rate), now
        self.remaining = min(self.remaining + (now - self.at) * rate / 1e9, float(rate)) - count
        self.at = now
        return max(-self.remaining / rate, 0.0)


TOPIC_IDLE_NS = 60_000_000_000
"""Time after its last message after which a topic leaves the count, at most twice that time, ns."""


@dataclass(slots=True)
class RecentTopics:
    """Topics that were published to in the current interval of TOPIC_IDLE_NS or the one before."""

    current: set[str] = field(default_factory=set)
    previous: set[str] = field(default_factory=set)
    """Topics of the interval before that are not among the current ones."""
    interval: int = 0
    """Number of the current interval: monotonic time divided by its length."""

    def __len__(self) -> int:
        return len(self.current) + len(self.previous)

    def begin_interval(self, interval: int) -> None:
        """Begin an interval unless it is the current one."""
        if interval != self.interval:
            self.previous = self.current if interval == self.interval + 1 else set()
            self.current, self.interval = set(), interval

    def count_new(self, topics: Iterable[str]) -> int:
        """Return how many of some topics are not counted."""
        return len(set(topics) - self.current - self.previous)

    def add(self, topics: Iterable[str]) -> None:
        """Count topics in the current interval."""
        self.current.update(topics)
        self.previous.difference_update(topics)


@dataclass(slots=True)
class QuotaUsage:
    """Current usage of one user or one client."""

    connections: int = 0
    subscriptions: int = 0
    topics: RecentTopics = field(default_factory=RecentTopics)
    temporary_topics: set[str] = field(default_factory=set)
    """Temporary topics that it owns. They end with their connection."""
    published: TokenBucket = field(default_factory=TokenBucket)


class Quotas:
    """Quotas of one instance.

    `_users` has the usage of connected users. Limits are looked up once for each user.
    """

    def __init__(
        self,
        policy: PolicyDocument,
        positions: PositionStore,
        owners: ClientNameOwners,
        journal: Journal,
        now: Callable[[], int],
    ) -> None:
        self._positions = positions
        self._owners = owners
        self._journal = journal
        self._now = now
        self._users: dict[str, QuotaUsage] = {}
        self._clients: dict[ConnectionView, tuple[str, QuotaUsage]] = {}
        self._temporary_topics: set[str] = set()
        """Temporary topics of all connections."""
        self.apply(policy)

    def apply(self, policy: PolicyDocument) -> None:
        """Put a policy revision in force."""
        self._layers = preset_layers(policy, "quotas")
        self._limits: dict[tuple[str, str], Mapping[str, int | None]] = {}

    def limits_for(self, transport: str, user: str) -> Mapping[str, int | None]:
        """Return the limits of a user's clients on a transport, by the names of the settings."""
        known = self._limits.get((transport, user))
        if known is None:
            if len(self._limits) >= MAX_CACHED_LIMITS:
                self._limits.clear()
            known = self._limits[transport, user] = self._layers.values(RuleSubject(transport, user))
        return known

    # Connections.

    def check_logon(
        self, connection: ConnectionView, identity: ClientIdentity, replaces: ConnectionView | None
    ) -> None:
        """Check that a user may have one more connection.

        `replaces`: connection of the same name that the new one replaces; it doesn't count.

        Raises:
            ClientError: connections_over_quota.
        """
        key = _key(connection, identity)
        use = self._users.get(key)
        used = use.connections if use is not None else 0
        if replaces is not None and self._clients.get(replaces, ("", None))[0] == key:
            used -= 1
        limit = self.limits_for(connection.transport, identity.resume_key)["user_connections"]
        if limit is not None and used >= limit:
            raise _over_quota_error("user_connections", used, limit, "connections_over_quota")

    def on_logged_on(self, connection: ConnectionView, identity: ClientIdentity) -> None:
        """Count a client that has logged on."""
        key = _key(connection, identity)
        self._users.setdefault(key, QuotaUsage()).connections += 1
        self._clients[connection] = (key, QuotaUsage())

    def on_disconnected(self, connection: ConnectionView) -> None:
        """Stop counting a disconnected client and its subscriptions."""
        key, client_usage = self._clients.pop(connection, ("", None))
        if client_usage is None:
            return
        use = self._users[key]
        use.connections -= 1
        use.subscriptions -= client_usage.subscriptions
        use.temporary_topics -= client_usage.temporary_topics
        self._temporary_topics -= client_usage.temporary_topics
        if not use.connections:
            del self._users[key]

    # Requests.

    def check_subscription(self, connection: ConnectionView, preparing: int = 0) -> None:
        """Check that a client and its user may have one more subscription.

        `preparing`: subscribes in preparation.

        Raises:
            ClientError: over_quota.
        """
        for name, used, limit in self._list_limits(connection, "subscriptions"):
            if (number := used.subscriptions + preparing) >= limit:
                raise _over_quota_error(name, number, limit, "over_quota")

    def adjust_subscriptions(self, connection: ConnectionView, number: int) -> None:
        """Add to the number of a client's subscriptions; negative to subtract."""
        for used in self._usages(connection):
            used.subscriptions += number

    def check_durable(self, connection: ConnectionView, client: str, name: str) -> None:
        """Check that a durable subscription may be stored. An existing one always may.

        Raises:
            ClientError: over_quota.
        """
        if (client, name) not in self._positions.durables:
            self._check_stored(connection, client, "durables", self._positions.durables_of)

    def check_replay(self, connection: ConnectionView) -> None:
        """Check that the client may create one more managed replay.

        Raises:
            ClientError: over_quota.
        """
        unfinished = Counter(one.client for one in self._positions.replays.values() if not one.ended)
        self._check_stored(connection, connection.name, "replays", unfinished)

    def _check_stored(
        self, connection: ConnectionView, client: str, quota_kind: str, numbers: Counter[str]
    ) -> None:
        """Check the quotas of a client and its owner on durable subscriptions or managed replays."""
        limits, owner = self._limits_for(connection), self._owners.user_of(client)
        # The owner is looked up once for each client: one may begin a thousand subscriptions in an iteration.
        users = sum(number for name, number in numbers.items() if self._owners.user_of(name) == owner)
        # Shared subscriptions belong to no single client, and all of them have one name.
        client_count = 0 if client == SHARED_OWNER else numbers[client]
        for name, used in ((f"client_{quota_kind}", client_count), (f"user_{quota_kind}", users)):
            limit = limits[name]
            if limit is not None and used >= limit:
                raise _over_quota_error(name, used, limit, "over_quota")
        self.check_pinned(connection, client)

    def check_pinned(self, connection: ConnectionView, client: str) -> None:
        """Check that stored state of a client's name, and of its owner, doesn't pin too much of the log.

        Raises:
            ClientError: over_quota.
        """
        limits = self._limits_for(connection)
        limit = limits["client_pinned_bytes"]
        if limit is not None and (used := self._pinned_bytes(client)) > limit:
            raise _over_quota_error("client_pinned_bytes", used, limit, "over_quota")
        limit, user = limits["user_pinned_bytes"], self._owners.user_of(client)
        if limit is not None and (used := self._journal.bytes_pinned_by(user)) > limit:
            raise _over_quota_error("user_pinned_bytes", used, limit, "over_quota")

    def _pinned_bytes(self, client: str) -> int:
        """Return the bytes of the log that the state of a client name pins."""
        records = (*self._positions.durables.values(), *self._positions.replays.values())
        pinned_sequences = [one.pinned_from for one in records if one.client == client]
        pinned_sequences += [
            target.pinned_from
            for member in self._clients
            if member.name == client
            for target in member.subscriptions.values()
        ]
        firsts = [first for first in pinned_sequences if first is not None]
        return self._journal.bytes_pinned_from(min(firsts)) if firsts else 0

    def charge_publish(self, connection: ConnectionView, topics: Sequence[str], count: int) -> float:
        """Count published messages and topics.

        Return the seconds for which the broker must not read from the client.

        Raises:
            ClientError: over_quota, when there would be a topic too many. Nothing is counted then.
        """
        found = self._clients.get(connection)
        if found is None:
            return 0.0
        key, client_usage = found
        user, limits = self._users[key], self._limits_for(connection)
        now, wait = self._now(), 0.0
        if client_usage.topics.interval != (interval := now // TOPIC_IDLE_NS):
            client_usage.topics.begin_interval(interval)
            user.topics.begin_interval(interval)
        # In an interval the topics of a client are also its user's.
        if not client_usage.topics.current.issuperset(topics):
            counted = set(topics) - self._temporary_topics  # these count for their owner
            self._count_topics(counted, ((client_usage, "client_topics"), (user, "user_topics")), limits)
        for use, name in ((client_usage, "client_publish_rate"), (user, "user_publish_rate")):
            if (rate := limits[name]) is not None:
                wait = max(wait, use.published.consume(count, rate, now))
        return wait

    def add_temporary_topic(self, connection: ConnectionView, topic: str) -> None:
        """Count a temporary topic for its owner until the owner disconnects, whoever publishes to it.

        Raises:
            ClientError: over_quota.
        """
        found = self._clients.get(connection)
        if found is None or topic in found[1].temporary_topics:
            return
        uses, limits = (found[1], self._users[found[0]]), self._limits_for(connection)
        self._count_topics((), ((uses[0], "client_topics"), (uses[1], "user_topics")), limits, 1)
        for use in uses:
            use.temporary_topics.add(topic)
        self._temporary_topics.add(topic)

    def _count_topics(
        self,
        topics: Collection[str],
        uses: tuple[tuple[QuotaUsage, str], ...],
        limits: Mapping[str, int | None],
        temporary: int = 0,
    ) -> None:
        """Add topics to the published ones, or raise over_quota before any is added.

        `temporary`: number of temporary topics that the caller adds.
        """
        for use, name in uses:
            limit = limits[name]
            used = len(use.topics) + len(use.temporary_topics)
            if limit is not None and used + use.topics.count_new(topics) + temporary > limit:
                raise _over_quota_error(name, used, limit, "over_quota")
        for use, _ in uses:
            use.topics.add(topics)

    def _usages(self, connection: ConnectionView) -> tuple[QuotaUsage, ...]:
        """Return the usage of a connection's client and of its user; () before the logon."""
        found = self._clients.get(connection)
        return (found[1], self._users[found[0]]) if found is not None else ()

    def _limits_for(self, connection: ConnectionView) -> Mapping[str, int | None]:
        identity = connection.identity
        return self.limits_for(connection.transport, identity.resume_key if identity is not None else "")

    def _list_limits(
        self, connection: ConnectionView, quota_kind: str
    ) -> Iterable[tuple[str, QuotaUsage, int]]:
        """Yield name, usage and limit of each quota of one kind that is set."""
        limits = self._limits_for(connection)
        for name, use in zip(
            (f"client_{quota_kind}", f"user_{quota_kind}"), self._usages(connection), strict=False
        ):
            if (limit := limits[name]) is not None:
                yield name, use, limit


MAX_CACHED_LIMITS = 10_000
"""Maximum number of users whose limits are cached."""


def _key(connection: ConnectionView, identity: ClientIdentity) -> str:
    """Return the user of a connection for its quotas; an unauthenticated one is "@" and its address.

    No user name begins with "@".
    """
    return identity.resume_key if identity.proven else f"@{peer_address(connection.sink.remote)}"


def _over_quota_error(quota: str, used: int, limit: int, code: str) -> ClientError:
    row = QUOTAS[quota]
    fix = "End or delete unused items, or request a larger quota from the operator."
    if quota.endswith("_topics"):
        idle_s = TOPIC_IDLE_NS // 1_000_000_000
        fix = (
            f"A topic leaves the count {idle_s} to {2 * idle_s} s after its last message, and temporary "
            "topics when their client disconnects. Use fewer topics, or request a larger quota."
        )
    subject = "You have" if quota.startswith("client_") else "Your user has"
    return ClientError(
        code,
        f"{subject} {used:,} {row.unit} of the {limit:,} that {quota} allows.",
        fix,
        quota=quota,
        used=used,
        limit=limit,
        unit=row.unit,
    )
