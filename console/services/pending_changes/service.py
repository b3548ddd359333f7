"""The tray: what somebody has chosen to do, collected with its effect, and done together with one reason.

Nothing here happens before `apply`. What each kind of act says and does is in `pending_changes.kinds`; whoever puts an act in needs its
right then, and again when it is done. Policy changes of one person gather in one draft.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from broker_core.errors import OperatorError, SluiceError
from console import current_instance
from console.choices import PendingChangeKind
from console.models import PendingChange, PolicyDraft
from console.queries import policies as read
from console.services import access, draft_parts, drafts, policies
from console.services.actors import Actor
from console.services.pending_changes.base import ChangePreview
from console.services.pending_changes.kinds import ACTS
from console.services.rollouts import RolloutPlan

MAX_ITEMS = 50
"""Of one person."""
_FIGURES = re.compile(r"\d[\d.,]*( clients?)?")
BEGUN_HERE = {"begun_here": True}
"""Of a draft that only the tray knows: it goes when the tray is discarded."""


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """An act and what is said of it."""

    item: PendingChange
    told: ChangePreview


@dataclass(frozen=True, slots=True)
class ApplyOutcome:
    """What came of an act. One that failed stays in the tray."""

    sentence: str
    done: bool


@dataclass(frozen=True, slots=True)
class PendingChanges:
    """Somebody's acts with their effects."""

    planned: list[PlannedChange]

    @property
    def headlines(self) -> list[tuple[str, bool]]:
        """What the acts come to, in a few words each, the severe ones first; none twice."""
        found = dict.fromkeys((told.headline, told.severe) for told in self._told if told.headline)
        return sorted(found, key=lambda one: not one[1])

    @property
    def blocked(self) -> list[str]:
        """Why it can't be done as it is."""
        return [why for told in self._told for why in told.blocked]

    @property
    def warnings(self) -> list[str]:
        """What must be confirmed."""
        return [why for told in self._told for why in told.warnings]

    @property
    def digest(self) -> str:
        """Digest of what was shown.

        Other acts, another version of a draft, another kind of warning, and another plan for journals have
        another digest. Figures that move each second aren't part of it.
        """
        shown = [
            [
                one.item.pk,
                one.told.what,
                one.item.draft.version if one.item.draft is not None else 0,
                one.told.differences,
                [_FIGURES.sub("#", warning) for warning in one.told.warnings],
                *([one.told.headline, [line.sentence for line in one.told.lines]] if one.told.fixed else []),
            ]
            for one in self.planned
        ]
        return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:32]

    @property
    def _told(self) -> list[ChangePreview]:
        return [one.told for one in self.planned]


def add_change(
    actor: Actor,
    kind: PendingChangeKind,
    target: str = "",
    parameters: Mapping[str, Any] | None = None,
    draft: PolicyDraft | None = None,
) -> PendingChange:
    """Put an act in, or the same one again with other parameters. Raises OperatorError not_allowed, tray_full."""
    instance = read.instance_named()
    _allowed(actor, kind, instance.name, target)
    with transaction.atomic():
        rows = PendingChange.objects.filter(owner_id=actor.user_id, instance=instance)
        fresh = not rows.filter(kind=kind, target=target).exists()
        if fresh and rows.count() >= MAX_ITEMS:
            raise OperatorError("tray_full", f"A tray holds {MAX_ITEMS} acts.", "Do or discard some.")
        item, _ = PendingChange.objects.update_or_create(
            owner_id=actor.user_id,
            instance=instance,
            kind=kind,
            target=target,
            defaults={"parameters": dict(parameters or {}), "draft": draft},
        )
    return item


def add_policy_change(actor: Actor, changes: Mapping[str, Any]) -> PolicyDraft:
    """Lay changes over the draft in the tray, which is made of the newest revision where there is none.

    Raises what `draft_parts.save` raises, and revision_changed when somebody published since the draft was made.
    """
    instance = read.instance_named()
    _allowed(actor, PendingChangeKind.POLICY, instance.name, "")
    held = _policy_item(actor)
    draft = held.draft if held is not None and held.draft is not None else None
    if draft is not None and draft.base != policies.newest_revision(instance).number:
        raise OperatorError(
            "revision_changed",
            "Somebody published a revision since your tray’s change was begun.",
            "Discard that change, and make it again.",
        )
    with transaction.atomic():
        if draft is None:
            draft = drafts.create_draft(actor, f"Changes by {actor.name}")
        draft = draft_parts.save_changes(actor, draft, changes, draft.version)
        add_change(
            actor, PendingChangeKind.POLICY, "", BEGUN_HERE if held is None else held.parameters, draft
        )
    return draft


def planned_document(actor: Actor) -> dict[str, Any] | None:
    """The policy as it would be with the tray's change; None when it has none. Its secrets' hashes stay in it."""
    held = _policy_item(actor)
    if held is None or held.draft is None:
        return None
    newest = policies.newest_revision(held.instance).number
    return {**held.draft.document, "revision": newest} if held.draft.base == newest else None


def add_draft(actor: Actor, draft: PolicyDraft, first: RolloutPlan | None = None) -> PendingChange:
    """Have the tray hold this draft as its change of the policy; `first` is for whom first."""
    return add_change(
        actor, PendingChangeKind.POLICY, "", {} if first is None else {"rollout": asdict(first)}, draft
    )


def add_rollback(actor: Actor, number: int) -> PolicyDraft:
    """Plan to bring an older revision back, as a new one. Raises OperatorError revision_withdrawn."""
    instance = read.instance_named()
    _allowed(actor, PendingChangeKind.POLICY, instance.name, "")
    policies.refuse_withdrawn(instance, number)
    with transaction.atomic():
        draft = drafts.create_draft(actor, f"Roll back to revision {number}", revision=number)
        add_change(actor, PendingChangeKind.POLICY, "", BEGUN_HERE, draft)
    return draft


def list_changes(actor: Actor, patterns: list[str] | None = None) -> PendingChanges:
    """The acts with their effects of now."""
    return PendingChanges([PlannedChange(item, _told(item, patterns)) for item in _items(actor)])


def has_changes(actor: Actor) -> bool:
    """Whether there is anything in it: one query, on every page."""
    return actor.user_id is not None and _rows(actor).exists()


def remove_change(actor: Actor, item_id: int) -> None:
    """Take one out. A draft stays in the list of drafts when it was made there."""
    _discard(PendingChange.objects.filter(owner_id=actor.user_id, pk=item_id))


def clear_changes(actor: Actor) -> None:
    """Take all out."""
    _discard(_rows(actor))


def apply_changes(
    actor: Actor, reason: str, *, confirmed: bool, plan: str, patterns: list[str] | None = None
) -> list[ApplyOutcome]:
    """Do all of it, in the order in which it was chosen, with one reason. What fails stays, and the others are done.

    `plan` is the digest of the tray that was shown. Raises OperatorError reason_needed, tray_blocked, plan_changed or
    confirm_needed; then nothing was done.
    """
    why, tray = reason.strip(), list_changes(actor, patterns)
    if not why:
        raise OperatorError("reason_needed", "A reason is required: it goes into the audit.", "Say why.")
    if tray.blocked:
        raise OperatorError("tray_blocked", tray.blocked[0], "Change it, or take it out of the tray.")
    if plan != tray.digest:
        raise OperatorError(
            "plan_changed",
            "What it would do has changed since it was shown; nothing was done.",
            "Look at it again.",
        )
    if tray.warnings and not confirmed:
        raise OperatorError("confirm_needed", "Its warnings must be confirmed first.", "Tick the box.")
    return [_do(actor, one.item, why) for one in tray.planned]


def _do(actor: Actor, item: PendingChange, reason: str) -> ApplyOutcome:
    try:
        _allowed(actor, PendingChangeKind(item.kind), item.instance.name, item.target)
        sentence = ACTS[PendingChangeKind(item.kind)].do(actor, item, reason)
    except SluiceError as problem:
        return ApplyOutcome(f"{item}: {problem.sentence} {problem.fix}".strip(), done=False)
    PendingChange.objects.filter(pk=item.pk).delete()
    return ApplyOutcome(sentence, done=True)


def _told(item: PendingChange, patterns: list[str] | None) -> ChangePreview:
    try:
        return ACTS[PendingChangeKind(item.kind)].told(item, patterns)
    except SluiceError as problem:
        return ChangePreview(str(item), blocked=[f"{item}: {problem.sentence}"])


def _allowed(actor: Actor, kind: PendingChangeKind, instance: str, target: str) -> None:
    act = ACTS[kind]
    client = target.partition("/")[0] if act.about_a_client else ""
    topic = target if act.about_a_topic else ""
    instance = "" if act.about_everything else instance
    access.require_permission(actor, act.permission, instance=instance, client=client, topic=topic)


def _items(actor: Actor) -> list[PendingChange]:
    return list(_rows(actor).select_related("instance", "draft"))


def _rows(actor: Actor) -> QuerySet[PendingChange]:
    """Those about the instance that is looked at."""
    return PendingChange.objects.filter(
        owner_id=actor.user_id, instance__name=current_instance.instance_name()
    )


def _policy_item(actor: Actor) -> PendingChange | None:
    rows = _rows(actor).filter(kind=PendingChangeKind.POLICY)
    return rows.select_related("draft").first()


def _discard(rows: QuerySet[PendingChange]) -> None:
    """A draft that the tray itself began goes with it."""
    with transaction.atomic():
        begun = [item.draft_id for item in rows if item.parameters == BEGUN_HERE and item.draft_id]
        rows.delete()
        PolicyDraft.objects.filter(pk__in=begun).delete()
