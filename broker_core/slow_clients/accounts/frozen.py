"""A live client as plain values that stay as they are: for previews, traces and back-tests."""

from __future__ import annotations

from operator import attrgetter

from broker_core.slow_clients.accounts.pool_use import PoolUse
from broker_core.slow_clients.accounts.pools import Pool
from broker_core.slow_clients.evaluate.signals import (
    ClientSignals,
    Holds,
    SubscriptionSignals,
    SubscriptionView,
)

_figures = attrgetter(*SubscriptionSignals.__dataclass_fields__)


def as_signals(use: PoolUse, pool: Pool, now_ns: int, holds: Holds) -> ClientSignals:
    """The client's figures now, as a client of that pool of whom rules remember this."""
    use.backlog.look()
    waiting = use.backlog.waiting()
    return ClientSignals(
        name=use.name,
        transport=use.transport,
        pool=pool.name,
        outbox_bytes=use.memory,
        outbox_messages=use.outbox_messages,
        spool_bytes=use.disk,
        spool_messages=waiting.spool_messages,
        oldest_at=use.oldest_at,
        unacked_at=use.unacked_at,
        offlined=use.offlined,
        write_blocked_since=use.write_blocked_since,
        unjournaled_messages=waiting.unjournaled_messages,
        resume_bookmark=waiting.resume_bookmark,
        samples=tuple(use.recent(now_ns)),
        user=use.user,
        offlined_at=use.offlined_at,
        conflation_bytes=use.conflation_bytes,
        taken_bytes=use.taken_bytes,
        lump_bytes=use.lump_bytes,
        owed_messages=use.owed_messages,
        owed_bytes=use.owed_bytes,
        behind_since=use.behind_since,
        marks=use.history.marks() if use.history is not None else (),
        subscriptions=tuple(frozen(view) for view in use.subscriptions),
        holds=holds,
        connected=use.connected,
    )


def frozen(view: SubscriptionView) -> SubscriptionSignals:
    """A subscription's figures now."""
    return SubscriptionSignals(*_figures(view))
