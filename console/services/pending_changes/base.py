"""Preview of a pending change, and the definition of a kind of change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from console.choices import Permission
from console.models import PendingChange
from console.queries import policy_effect
from console.services.actors import Actor


@dataclass(frozen=True, slots=True)
class ChangePreview:
    """Effect that a pending change would have.

    title        the change in a sentence
    headline     its effect in a few words, for the bar at the top of pages
    lines        its effect, line by line
    warnings     sentences that the operator must confirm
    blocked      reasons why it can't be applied
    severe       it disconnects clients, loses records or can't be undone
    fixed        the digest covers this exact effect; another effect must be shown again before it is applied
    address      id of the draft, for a change of the policy
    differences  settings that a change of the policy changes
    """

    title: str
    headline: str = ""
    lines: list[policy_effect.EffectLine] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    severe: bool = False
    fixed: bool = False
    address: str = ""
    differences: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ChangeKind:
    """Permission, preview and execution of one kind of pending change.

    permission        permission that the operator needs
    preview           returns the preview; names only clients that match the given patterns (None: all)
    do                applies the change with a reason, and returns a sentence about the result
    about_a_client    the target begins with a client's name, which the permission must cover
    about_a_topic     the target is a topic, which the permission must cover
    about_everything  the permission must cover the whole installation
    """

    permission: Permission
    preview: Callable[[PendingChange, list[str] | None], ChangePreview]
    do: Callable[[Actor, PendingChange, str], str]
    about_a_client: bool = False
    about_a_topic: bool = False
    about_everything: bool = False


def effect_line(sentence: str, kind: str = "act") -> policy_effect.EffectLine:
    """Return a line of an effect without names of clients."""
    return policy_effect.EffectLine(kind, sentence, [], 0)
