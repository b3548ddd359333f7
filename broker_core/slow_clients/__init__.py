"""Slow clients: signals and rules in, explained decisions out. Pure: no clock, no files, no sockets.

Public names: `SlowClientGuard` (one per instance, called by `engine.settle`), `evaluate` (the judge, shared with
previews and back-tests), and the values they speak in.
"""

from __future__ import annotations

from broker_core.documents.records import Candidate
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.accounts.pool_use import PoolUse
from broker_core.slow_clients.accounts.pools import Pool, build_pools
from broker_core.slow_clients.accounts.watched import Watched
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.judge import evaluate
from broker_core.slow_clients.evaluate.signals import (
    Backlog,
    ClientSignals,
    PoolSignals,
    Sample,
    SubscriptionSignals,
    SubscriptionView,
    Waiting,
)
from broker_core.slow_clients.rules.rule import Action, ClientLimits, Mode, PoolLimits, Reason, Rule, Rung

__all__ = [
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
    "PoolUse",
    "Reason",
    "Rule",
    "Rung",
    "Sample",
    "SlowClientGuard",
    "SubscriptionSignals",
    "SubscriptionView",
    "Waiting",
    "Watched",
    "build_pools",
    "evaluate",
]
