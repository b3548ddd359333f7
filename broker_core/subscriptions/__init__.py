"""Subscriptions: topic patterns, the registry (batch → who wants which records), and what a replay takes."""

from __future__ import annotations

from broker_core.subscriptions.registry import Match, Registry
from broker_core.subscriptions.selecting import EMPTY, select_for
from broker_core.subscriptions.subscription import Subscription
from broker_core.subscriptions.topics import TopicPattern

__all__ = ["EMPTY", "Match", "Registry", "Subscription", "TopicPattern", "select_for"]
