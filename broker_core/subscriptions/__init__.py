"""Subscriptions: topic patterns, the registry that matches batches, and row selection for replays."""

from __future__ import annotations

from broker_core.subscriptions.registry import SubscriptionMatch, SubscriptionRegistry
from broker_core.subscriptions.subscription import EMPTY, TopicSubscription, select_rows
from broker_core.subscriptions.topics import TopicPattern

__all__ = [
    "EMPTY",
    "SubscriptionMatch",
    "SubscriptionRegistry",
    "TopicPattern",
    "TopicSubscription",
    "select_rows",
]
