"""Slow clients: signals and rules in, explained decisions out. Pure: no clock, no files, no sockets.

Public names: `SlowClientGuard` (one per instance, called by the runtime), `evaluate` (the judge, shared with
previews and back-tests), and the values they speak in.
"""

from __future__ import annotations

from broker_core.slow_clients.accounts import Account
from broker_core.slow_clients.decision import Candidate, Decision
from broker_core.slow_clients.evaluate import evaluate
from broker_core.slow_clients.guard import SlowClientGuard
from broker_core.slow_clients.pools import Pool, build_pools
from broker_core.slow_clients.rules import Action, ClientLimits, Mode, PoolLimits, Reason, Rule, Rung
from broker_core.slow_clients.signals import (
    Backlog,
    ClientSignals,
    PoolSignals,
    Sample,
    SubscriptionSignals,
    Waiting,
)

__all__ = [
    "Account",
    "Action",
    "Backlog",
    "Candidate",
    "ClientLimits",
    "ClientSignals",
    "Decision",
    "Mode",
    "Pool",
    "PoolLimits",
    "PoolSignals",
    "Reason",
    "Rule",
    "Rung",
    "Sample",
    "SlowClientGuard",
    "SubscriptionSignals",
    "Waiting",
    "build_pools",
    "evaluate",
]
