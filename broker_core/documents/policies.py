"""Whom a policy touches, and what a broker runs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from broker_core.documents.base import Document, Setting
from broker_core.documents.records import DecisionEntry


class Running(Document, frozen=True, kw_only=True):
    """The revision a broker runs now."""

    revision: int


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


class PolicyEffect(Document, frozen=True, kw_only=True):
    """What a policy would do now: whom it touches, who would be acted on at once, and whose connection it would close, which
    is then not acted on. The lists may be cut; counts aren't."""

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
