"""A live client as plain values that stay as they are: for previews, traces and back-tests."""

from __future__ import annotations

from dataclasses import replace

from broker_core.slow_clients.accounts import Account
from broker_core.slow_clients.pools import Pool
from broker_core.slow_clients.signals import ClientSignals


def snapshot(account: Account, pool: Pool, now_ns: int) -> ClientSignals:
    """The client's figures now, as a client of that pool."""
    waiting = account.backlog.waiting()
    return ClientSignals(
        name=account.name,
        transport=account.transport,
        pool=pool.name,
        outbox_bytes=account.memory,
        outbox_messages=waiting.outbox_messages,
        spool_bytes=account.disk,
        spool_messages=waiting.spool_messages,
        oldest_at=account.oldest_at,
        offlined=account.offlined,
        write_blocked_since=account.write_blocked_since,
        unjournaled_messages=waiting.unjournaled_messages,
        resume_bookmark=waiting.resume_bookmark,
        samples=tuple(account.recent(now_ns)),
        user=account.user,
        offlined_at=account.offlined_at,
        conflation_bytes=account.conflation_bytes,
        sent_bytes=account.sent_bytes,
        subscriptions=tuple(replace(one) for one in account.subscriptions),
        holds=dict(account.holds),
        connected=account.connected,
    )
