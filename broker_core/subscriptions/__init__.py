"""Subscriptions: topic patterns, the registry (batch → who wants which records), and the replay cursor."""

from __future__ import annotations

from broker_core.subscriptions.registry import Match, Registry
from broker_core.subscriptions.selecting import EMPTY, ReplayCursor, select_for
from broker_core.subscriptions.subscription import Subscription
from broker_core.subscriptions.topics import TopicPattern

__all__ = ["EMPTY", "Match", "Registry", "ReplayCursor", "Subscription", "TopicPattern", "select_for"]
