"""Python client of Sluice: `AsyncClient` for asyncio, `SyncClient` for programs without asyncio.

A publish store holds messages that the broker has not acknowledged. A bookmark store holds the position up to
which a subscriber has processed its messages. Both exist in memory and as files. `AsyncGroups` and
`SyncGroups` are clients of several groups of brokers, each with topics of its own. `python -m
broker_core.client --help` describes the client for a shell.
"""

from __future__ import annotations

from broker_core.bookmark import EPOCH_TEXT as EPOCH
from broker_core.bookmark import NOW_TEXT as NOW
from broker_core.client.async_client import AsyncClient
from broker_core.client.bookmark_store import (
    MOST_RECENT,
    BookmarkStore,
    FileBookmarkStore,
    MemoryBookmarkStore,
)
from broker_core.client.connector import ConnectionLoss, ReconnectPolicy
from broker_core.client.groups import AsyncGroups, GroupConfig
from broker_core.client.groups_subscription import GroupsSubscription
from broker_core.client.links import tls_context
from broker_core.client.messages import Message
from broker_core.client.publish_store import FilePublishStore, MemoryPublishStore, PublishStore
from broker_core.client.publisher import Rejection
from broker_core.client.subscription import Subscription
from broker_core.client.sync_client import SyncClient, SyncSubscription
from broker_core.client.sync_groups import SyncGroups

__all__ = [
    "EPOCH",
    "MOST_RECENT",
    "NOW",
    "AsyncClient",
    "AsyncGroups",
    "BookmarkStore",
    "ConnectionLoss",
    "FileBookmarkStore",
    "FilePublishStore",
    "GroupConfig",
    "GroupsSubscription",
    "MemoryBookmarkStore",
    "MemoryPublishStore",
    "Message",
    "PublishStore",
    "ReconnectPolicy",
    "Rejection",
    "Subscription",
    "SyncClient",
    "SyncGroups",
    "SyncSubscription",
    "tls_context",
]
