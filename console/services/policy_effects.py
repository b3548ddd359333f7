"""Effects of putting a policy in force, and the warnings that an operator must confirm first.

Used by pages (`pending_changes.kinds` and `.control`) and by the API (`api.confirmation`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from broker_core.slow_clients.rules.review import Severity
from console.queries import policy_effect
from console.services.drafts import DraftPreview
from console.units.format import humanise_sentence, size


@dataclass(frozen=True, slots=True)
class PolicyChangeEffect:
    """Effect of a policy that isn't in force yet.

    lines     immediate effects, worst first
    changes   differences for clients
    headline  short form of the first effect; "" without an immediate effect
    warnings  sentences that must be confirmed before the policy is put in force
    severe    whether clients are disconnected, acted on, or lose records
    """

    lines: list[policy_effect.EffectLine] = field(default_factory=list)
    changes: list[policy_effect.EffectLine] = field(default_factory=list)
    headline: str = ""
    warnings: list[str] = field(default_factory=list)
    severe: bool = False


def effect_of_publishing(found: DraftPreview, document: Mapping[str, Any]) -> PolicyChangeEffect:
    """Return the effect of publishing a document. Warnings about its settings come first."""
    unwise = [
        humanise_sentence(f"{one.where}: {one.sentence}")
        for one in found.findings
        if one.severity is Severity.WARN
    ]
    return _effect(found, document, [*unwise, *beyond_the_machine(document)])


def effect_of_ending_rollout(found: DraftPreview, document: Mapping[str, Any]) -> PolicyChangeEffect:
    """Return the effect of giving every client a stored revision, whose settings were confirmed before."""
    return _effect(found, document, [])


def _effect(found: DraftPreview, document: Mapping[str, Any], warnings: list[str]) -> PolicyChangeEffect:
    unknown = [found.unknown] if found.unknown else []
    if found.effect is None:
        return PolicyChangeEffect(warnings=[*warnings, *unknown])
    summary = policy_effect.summarise_effect(found.effect, _signals(document))
    severe = [summary.headline] if summary.severe else []
    headline = summary.headline.rstrip(".") if summary.at_once else ""
    warnings = [*warnings, *severe, *unknown]
    return PolicyChangeEffect(summary.at_once, summary.changes, headline, warnings, summary.severe)


def _signals(document: Mapping[str, Any]) -> dict[str, str]:
    """Return each rule's signal by the rule's name."""
    rules = [rule for rule in document.get("rules") or [] if isinstance(rule, Mapping)]
    return {str(rule.get("name")): str(rule.get("signal") or "") for rule in rules}


def beyond_the_machine(
    document: Mapping[str, Any], memory: int | None = None, disk: int | None = None
) -> list[str]:
    """Return a sentence for each limit above what this machine has. No client can ever exceed such a limit.

    `memory` and `disk` are in bytes; None means those of this machine.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if memory is None else memory
    disk = shutil.disk_usage(settings.SLUICE_SPOOL_DIRECTORY.parent).total if disk is None else disk
    pools = [("instance", document.get("pool"))]
    pools += [
        (f"transport {one.get('name')}", one.get("pool"))
        for one in document.get("transports") or []
        if isinstance(one, Mapping)
    ]
    found = []
    for owner, pool in pools:
        for key, word, available in (
            ("message_memory_limit", "memory", memory),
            ("message_disk_limit", "disk", disk),
        ):
            limit = pool.get(key) if isinstance(pool, Mapping) else None
            if isinstance(limit, int) and limit > available:
                found.append(
                    f"{owner}: a {word} limit of {size(limit)} exceeds this machine's {word} "
                    f"({size(available)})."
                )
    return found
