"""What an act in a tray says of itself, and what a kind of act is."""

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
    """What an act would do.

    what      the act in a sentence
    headline  its effect in a few words, for the bar
    lines     its effect
    warnings  must be confirmed; blocked: it can't be done
    fixed     it was planned on exactly this effect: another one is shown again before anything is done
    """

    what: str
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
    """A kind. `about_a_client`: its target begins with a client's name; `about_a_topic`: it is one;
    `about_everything`: the right must be held over the whole installation."""

    permission: Permission
    told: Callable[[PendingChange, list[str] | None], ChangePreview]
    do: Callable[[Actor, PendingChange, str], str]
    about_a_client: bool = False
    about_a_topic: bool = False
    about_everything: bool = False


def effect_line(sentence: str, kind: str = "act") -> policy_effect.EffectLine:
    """A line of an effect that names nobody."""
    return policy_effect.EffectLine(kind, sentence, [], 0)
