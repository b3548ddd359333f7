"""Pending changes: an operator collects them, reviews their effects, and applies all with one reason.

Nothing happens before `apply_changes`. `pending_changes.kinds` has preview and execution of each kind. The
operator needs the kind's permission when a change is added, and again when it is applied. All changes of
the policy by one operator share one draft.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from broker_core.errors import OperatorError, SluiceError
from console import current_instance
from console.broker_link import BrokerUnavailable, BrokerUnreachable
from console.choices import PendingChangeKind
from console.models import PendingChange, PolicyDraft
from console.queries import policies as read
from console.services import access, draft_parts, drafts, policies
from console.services.actors import Actor
from console.services.pending_changes.base import ChangePreview
from console.services.pending_changes.kinds import CHANGE_KINDS
from console.services.rollouts import RolloutPlan

MAX_ITEMS = 50
"""Maximum pending changes per operator and instance."""
_FIGURES = re.compile(r"\d[\d.,]*( clients?)?")
"""Figures in warnings, which the digest leaves out because they change each second."""
CREATED_HERE = {"begun_here": True}
"""Parameters of a change whose draft was created here: discarding the change deletes the draft."""


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """Pending change with its preview."""

    item: PendingChange
    preview: ChangePreview


@dataclass(frozen=True, slots=True)
class ApplyOutcome:
    """Result of one change: a sentence, and whether it was applied. A change that failed stays pending."""

    sentence: str
    done: bool


@dataclass(frozen=True, slots=True)
class PendingChanges:
    """Pending changes of one operator, with their previews."""

    planned: list[PlannedChange]

    @property
    def headlines(self) -> list[tuple[str, bool]]:
        """Headline and severity of each change, severe ones first, without duplicates."""
        found = dict.fromkeys(
            (preview.headline, preview.severe) for preview in self._previews if preview.headline
        )
        return sorted(found, key=lambda one: not one[1])

    @property
    def blocked(self) -> list[str]:
        """Reasons why the changes can't be applied as they are."""
        return [sentence for preview in self._previews for sentence in preview.blocked]

    @property
    def warnings(self) -> list[str]:
        """Sentences that the operator must confirm."""
        return [sentence for preview in self._previews for sentence in preview.warnings]

    @property
    def digest(self) -> str:
        """Digest of the previews that were shown.

        It covers the set of changes, drafts' versions, the kinds of warnings and the plans for journals. It
        doesn't cover figures that change each second.
        """
        shown = [
            [
                one.item.pk,
                one.preview.title,
                one.item.draft.version if one.item.draft is not None else 0,
                one.preview.differences,
                [_FIGURES.sub("#", warning) for warning in one.preview.warnings],
                *(
                    [one.preview.headline, [line.sentence for line in one.preview.lines]]
                    if one.preview.fixed
                    else []
                ),
            ]
            for one in self.planned
        ]
        return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:32]

    @property
    def _previews(self) -> list[ChangePreview]:
        return [one.preview for one in self.planned]


def add_change(
    actor: Actor,
    kind: PendingChangeKind,
    target: str = "",
    parameters: Mapping[str, Any] | None = None,
    draft: PolicyDraft | None = None,
) -> PendingChange:
    """Add a change, or replace the parameters of an equal one.

    Raises:
        OperatorError: `not_allowed` or `tray_full`.
    """
    instance = read.instance_named()
    _require_permission(actor, kind, instance.name, target)
    with transaction.atomic():
        rows = PendingChange.objects.filter(owner_id=actor.user_id, instance=instance)
        fresh = not rows.filter(kind=kind, target=target, claimed_at=None).exists()
        if fresh and rows.count() >= MAX_ITEMS:
            raise OperatorError(
                "tray_full", f"At most {MAX_ITEMS} changes can be pending.", "Apply or discard some."
            )
        item, _ = PendingChange.objects.update_or_create(
            owner_id=actor.user_id,
            instance=instance,
            kind=kind,
            target=target,
            claimed_at=None,
            defaults={"parameters": dict(parameters or {}), "draft": draft},
        )
    return item


def add_policy_change(actor: Actor, changes: Mapping[str, Any]) -> PolicyDraft:
    """Merge changes into the operator's pending draft. Create it from the newest revision if needed.

    Raises:
        OperatorError: `revision_changed` if another revision was published since the draft was created, and
            the errors of `draft_parts.save_changes`.
    """
    instance = read.instance_named()
    _require_permission(actor, PendingChangeKind.POLICY, instance.name, "")
    item = _policy_item(actor)
    draft = item.draft if item is not None and item.draft is not None else None
    if draft is not None and draft.base != policies.newest_revision(instance).number:
        raise OperatorError(
            "revision_changed",
            "Another revision was published after you began your pending policy change.",
            "Discard that change, and make it again.",
        )
    with transaction.atomic():
        if draft is None:
            draft = drafts.create_draft(actor, f"Changes by {actor.name}")
        draft = draft_parts.save_changes(actor, draft, changes, draft.version)
        add_change(
            actor, PendingChangeKind.POLICY, "", CREATED_HERE if item is None else item.parameters, draft
        )
    return draft


def planned_document(actor: Actor) -> dict[str, Any] | None:
    """Return the policy document with the operator's pending changes, including hashes of secrets.

    None without such changes, or if another revision was published since.
    """
    item = _policy_item(actor)
    if item is None or item.draft is None:
        return None
    newest = policies.newest_revision(item.instance).number
    return {**item.draft.document, "revision": newest} if item.draft.base == newest else None


def add_draft(actor: Actor, draft: PolicyDraft, first: RolloutPlan | None = None) -> PendingChange:
    """Make a draft the operator's pending change of the policy. `first` plans a staged rollout."""
    return add_change(
        actor, PendingChangeKind.POLICY, "", {} if first is None else {"rollout": asdict(first)}, draft
    )


def add_rollback(actor: Actor, number: int) -> PolicyDraft:
    """Add a change that restores an older revision as a new one.

    Raises OperatorError `revision_withdrawn`.
    """
    instance = read.instance_named()
    _require_permission(actor, PendingChangeKind.POLICY, instance.name, "")
    policies.refuse_withdrawn(instance, number)
    with transaction.atomic():
        draft = drafts.create_draft(actor, f"Roll back to revision {number}", revision=number)
        add_change(actor, PendingChangeKind.POLICY, "", CREATED_HERE, draft)
    return draft


def list_changes(actor: Actor, patterns: list[str] | None = None) -> PendingChanges:
    """Return the operator's pending changes with their effects at this time."""
    return PendingChanges([PlannedChange(item, _preview_of_change(item, patterns)) for item in _items(actor)])


def has_changes(actor: Actor) -> bool:
    """Whether the operator has pending changes. One query; every page asks."""
    return actor.user_id is not None and _rows(actor).exists()


def remove_change(actor: Actor, item_id: int) -> None:
    """Discard one change. A draft that was created on the page of drafts stays there."""
    _delete_changes(PendingChange.objects.filter(owner_id=actor.user_id, pk=item_id))


def clear_changes(actor: Actor) -> None:
    """Discard all changes for the current instance."""
    _delete_changes(_rows(actor))


def apply_changes(
    actor: Actor, reason: str, *, confirmed: bool, plan: str, patterns: list[str] | None = None
) -> list[ApplyOutcome]:
    """Apply all changes in order, with one reason. A change that fails stays pending; the others are applied.

    Args:
        actor: The operator.
        reason: Reason for the audit.
        confirmed: Whether the operator has confirmed the warnings.
        plan: Digest of the previews that were shown.
        patterns: Name patterns of the clients that the operator may see; None for all.

    Raises:
        OperatorError: `reason_needed`, `tray_blocked`, `plan_changed` or `confirm_needed`. Then nothing was
            applied.
    """
    stripped, pending = reason.strip(), list_changes(actor, patterns)
    if not stripped:
        raise OperatorError("reason_needed", "A reason is required for the audit log.", "Say why.")
    if pending.blocked:
        raise OperatorError(
            "tray_blocked", pending.blocked[0], "Change it, or remove it from the pending changes."
        )
    if plan != pending.digest:
        raise OperatorError(
            "plan_changed",
            "The effect has changed since the preview. No change was applied.",
            "Check the preview again.",
        )
    if pending.warnings and not confirmed:
        raise OperatorError(
            "confirm_needed", "Confirm the warnings of the change first.", "Select the checkbox."
        )
    return [_apply_change(actor, one.item, stripped) for one in pending.planned]


def _apply_change(actor: Actor, item: PendingChange, reason: str) -> ApplyOutcome:
    """Apply one change. A change that fails stays pending, unless a broker may have carried it out."""
    try:
        _require_permission(actor, PendingChangeKind(item.kind), item.instance.name, item.target)
    except SluiceError as problem:
        return _failed(item, problem)
    # Of several requests that apply the change, only one claims it. A process that is killed leaves its
    # claim, so that the change is neither lost nor applied twice.
    row = PendingChange.objects.filter(pk=item.pk)
    if not row.filter(claimed_at=None).update(claimed_at=timezone.now()):
        return ApplyOutcome(f"{item}: Another request has applied or removed it.", done=False)
    try:
        sentence = CHANGE_KINDS[PendingChangeKind(item.kind)].do(actor, item, reason)
    except BaseException as problem:
        if isinstance(problem, BrokerUnavailable) and not isinstance(problem, BrokerUnreachable):
            return _failed(item, problem)  # the broker has the request: the claim stays
        _release_claim(item)
        if not isinstance(problem, SluiceError):
            raise
        return _failed(item, problem)
    row.delete()
    return ApplyOutcome(sentence, done=True)


def _failed(item: PendingChange, problem: SluiceError) -> ApplyOutcome:
    return ApplyOutcome(f"{item}: {problem.sentence} {problem.fix}".strip(), done=False)


def _release_claim(item: PendingChange) -> None:
    """Make a claimed change pending again, or delete it if the operator has added an equal one meanwhile."""
    row = PendingChange.objects.filter(pk=item.pk)
    try:
        with transaction.atomic():
            row.update(claimed_at=None)
    except IntegrityError:
        row.delete()


def _preview_of_change(item: PendingChange, patterns: list[str] | None) -> ChangePreview:
    """Return a change's preview. An error or a claim becomes a reason why the change is blocked."""
    if item.claimed_at is not None:
        return ChangePreview(str(item), blocked=[_unknown_result(item)])
    try:
        return CHANGE_KINDS[PendingChangeKind(item.kind)].preview(item, patterns)
    except SluiceError as problem:
        return ChangePreview(str(item), blocked=[f"{item}: {problem.sentence}"])


def _unknown_result(item: PendingChange) -> str:
    """Return why a claimed change can't be applied again."""
    return (
        f"{item}: The console began to apply it at {item.claimed_at:%Y-%m-%d %H:%M:%S} UTC, and has not "
        "reported the end. It may have been carried out: check the audit and its effect, then remove it here."
    )


def _require_permission(actor: Actor, kind: PendingChangeKind, instance: str, target: str) -> None:
    """Raise OperatorError `not_allowed` unless the actor has the permission for this kind and target."""
    rules = CHANGE_KINDS[kind]
    client = target.partition("/")[0] if rules.about_a_client else ""
    topic = target if rules.about_a_topic else ""
    instance = "" if rules.about_everything else instance
    access.require_permission(actor, rules.permission, instance=instance, client=client, topic=topic)


def _items(actor: Actor) -> list[PendingChange]:
    return list(_rows(actor).select_related("instance", "draft"))


def _rows(actor: Actor) -> QuerySet[PendingChange]:
    """Return the actor's pending changes for the current instance."""
    return PendingChange.objects.filter(
        owner_id=actor.user_id, instance__name=current_instance.instance_name()
    )


def _policy_item(actor: Actor) -> PendingChange | None:
    rows = _rows(actor).filter(kind=PendingChangeKind.POLICY, claimed_at=None)
    return rows.select_related("draft").first()


def _delete_changes(rows: QuerySet[PendingChange]) -> None:
    """Delete changes, with the drafts that were created for them."""
    with transaction.atomic():
        draft_ids = [item.draft_id for item in rows if item.parameters == CREATED_HERE and item.draft_id]
        rows.delete()
        PolicyDraft.objects.filter(pk__in=draft_ids).delete()
