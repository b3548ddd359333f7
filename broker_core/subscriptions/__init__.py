"""Subscriptions: topic patterns, the registry that matches batches, and row selection for replays."""

from __future__ import annotations

from broker_core.subscriptions.registry import SubscriptionMatch, SubscriptionRegistry
from broker_core.subscriptions.subscription import EMPTY, Subscription, select_rows
from broker_core.subscriptions.topics import TopicPattern

__all__ = [
    "EMPTY",
    "Subscription",
    "SubscriptionMatch",
    "SubscriptionRegistry",
    "TopicPattern",
    "select_rows",
]
