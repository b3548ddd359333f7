"""Whom a policy touches, and what a broker runs."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from broker_core.documents.base import Document, Json, Setting
from broker_core.documents.records import DecisionEntry


class Running(Document, frozen=True, kw_only=True):
    """The revision a broker runs now."""

    revision: int


class PolicyInForce(Document, frozen=True, kw_only=True):
    """Policy that a broker runs. `staged`: the one in force for some clients first."""

    policy: Json
    staged: Json = None
    is_set_back: Annotated[
        bool,
        Meta(description="Whether the broker keeps it until an operator decides: the database lacks it."),
    ] = False


class SettingValue(Document, frozen=True, kw_only=True):
    """A value, and where it is set."""

    value: Setting
    origin: str


class SettingChange(Document, frozen=True, kw_only=True):
    """A setting that would have another value."""

    setting: str
    before: SettingValue
    after: SettingValue


class TouchedEntry(Document, frozen=True, kw_only=True):
    """A client, or one of its subscriptions, for which settings would change."""

    client: str
    transport: str
    subscription: str
    changes: list[SettingChange]


class CutOffEntry(Document, frozen=True, kw_only=True):
    """A client whose connection would be closed, whatever waits for it."""

    client: str
    transport: str
    code: Annotated[
        str,
        Meta(
            description="What it would be told: transport_closed (taken away, disabled or moved), or access_changed."
        ),
    ]


SubscriberKind = Literal["bookmark", "durable", "replay", "queue", "shared"]


class LogSubscriberEntry(Document, frozen=True, kw_only=True):
    """A subscription of the log whose topics would no longer be journaled: it would get nothing more of
    them."""

    client: Annotated[
        str, Meta(description="Of a queue, or another shared one, without consumers: its name.")
    ]
    subscription: Annotated[str, Meta(description="Its id; of one whose client is away its name.")]
    topic: str
    subscription_kind: SubscriberKind
    connected: bool
    extent: Annotated[
        Literal["part", "all"], Meta(description="What of its topics isn't journaled any more.")
    ]


class PolicyEffect(Document, frozen=True, kw_only=True):
    """What a policy would do now: whom it touches, who would be acted on at once, and whose connection it would close, which
    is then not acted on; and who reads topics from the log that it would no longer journal. The lists may be
    cut; counts aren't."""

    clients: int
    touched: list[TouchedEntry]
    touched_in_all: int
    acted_on: list[DecisionEntry]
    acted_on_in_all: int
    enforced_in_all: Annotated[
        int,
        Meta(description="Of acted_on_in_all: decisions that are carried out. The others are recorded only."),
    ] = 0
    held_in_all: Annotated[
        int,
        Meta(description="Of acted_on_in_all: decisions beyond the rollout's allowance, not carried out."),
    ] = 0
    cut_off: list[CutOffEntry]
    cut_off_in_all: int
    unrecorded: list[LogSubscriberEntry] = []
    unrecorded_in_all: int = 0
