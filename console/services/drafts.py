"""Drafts of policies: edit, preview, publish.

A draft may be invalid; only publishing requires a valid policy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from django.db import transaction

from broker_core.config import PolicyDocument
from broker_core.config.document_reader import DocumentReader
from broker_core.config.instance import read_journaled_topics
from broker_core.documents.instance import PolicyEffect
from broker_core.documents.requests import PreviewPolicy
from broker_core.errors import OperatorError, SluiceError
from broker_core.names import name_matches
from broker_core.slow_clients.rules.review import PolicyFinding, review_policy
from console.access.policy_secrets import redact_secrets, restore_secrets
from console.broker_link import BrokerUnavailable, collect_unreachable, link_to
from console.models import Instance, PolicyDraft, PolicyRevision, StagedRollout
from console.queries import policies as read
from console.queries.document_diff import DocumentChange as Difference
from console.queries.document_diff import diff_documents
from console.queries.policy_redaction import is_entry_path
from console.services import audit, policies, rollouts
from console.services.actors import Actor

MAX_DRAFTS = 100
"""Maximum drafts per instance."""
MAX_CHARACTERS = 4 * 1024 * 1024
"""Maximum characters of a draft's document as JSON."""
OBJECTS = ("instance", "pool", "client_policy", "access")
LISTS = ("transports", "rules", "xap", "activemq", "qpid", "quotas", "destinations")
EDITABLE = ("instance", "pool", "client_policy", *LISTS, "access")


@dataclass(frozen=True, slots=True)
class DraftPreview:
    """Effect that publishing a document would have.

    problems     reasons why it can't be published; then there is no `effect`
    findings     settings that are allowed but unwise
    differences  differences from the newest revision
    effect       effect computed by the running broker: clients, touched, acted_on, cut_off, and their counts
    away         reason why there is no effect, or why it lacks the clients of some members of a group
    members      members whose clients the effect lacks
    """

    problems: list[str]
    differences: list[Difference]
    findings: list[PolicyFinding] = field(default_factory=list)
    effect: PolicyEffect | None = None
    away: str = ""
    members: tuple[str, ...] = ()

    @property
    def unknown(self) -> str:
        """Sentence about clients for which the effect isn't known; "" when it is known for all."""
        if not self.away:
            return ""
        where = f" on {', '.join(self.members)}" if self.members else ""
        return f"Affected clients{where} are unknown: {self.away}"


def create_draft(
    actor: Actor,
    title: str,
    *,
    document: Mapping[str, Any] | None = None,
    revision: int | None = None,
    instance_name: str | None = None,
) -> PolicyDraft:
    """Create a draft from the newest revision, a given document, or an older revision.

    Raises:
        OperatorError: `bad_policy`, `outside_roots` or `too_many_drafts`.
    """
    instance = read.instance_named(instance_name)
    newest = policies.newest_revision(instance)
    has_document = document is not None
    if document is None and revision is not None:
        document = read.revision_numbered(instance, revision).document
    if PolicyDraft.objects.filter(instance=instance).count() >= MAX_DRAFTS:
        raise OperatorError(
            "too_many_drafts",
            f"{instance.name} has reached the limit of {MAX_DRAFTS} drafts.",
            "Delete some.",
        )
    draft = PolicyDraft(
        instance=instance,
        title=(title.strip() or "Untitled")[:200],
        base=newest.number,
        document=_checked(
            restore_secrets(document, newest.document) if document is not None else newest.document, instance
        ),
        author=actor.name[:200],
    )
    if has_document:
        policies.refuse_newly_misplaced(draft.document, newest.document)
        policies.refuse_unwritable_spools(instance.name, draft.document, newest.document)
    draft.save()
    audit.record(actor, "draft.create", f"{instance.name}: {draft.title}", after={"base": draft.base})
    return draft


def draft_numbered(number: int, *, lock: bool = False) -> PolicyDraft:
    """Return the draft with this id; `lock` locks its row. Raises OperatorError `unknown_draft`."""
    rows = PolicyDraft.objects.select_related("instance")
    draft = (rows.select_for_update(of=("self",)) if lock else rows).filter(pk=number).first()
    if draft is None:
        raise OperatorError("unknown_draft", f"The draft {number} doesn't exist.", "See /api/v1/drafts.")
    return draft


def edit_draft(
    actor: Actor,
    number: int,
    changes: Mapping[str, Any],
    *,
    title: str | None = None,
    expected_version: int | None = None,
) -> PolicyDraft:
    """Merge changes into a draft's document: objects key by key, lists as a whole.

    A password or token that reads "set" keeps its value from the draft or the newest revision.

    Args:
        actor: The operator.
        number: Id of the draft.
        changes: Changed parts of the document.
        title: New title; None or blank leaves it.
        expected_version: Version that the operator has read; None skips the check.

    Raises:
        OperatorError: `bad_policy`, `draft_changed` or `outside_roots`.
    """
    with transaction.atomic():
        draft = _expected(draft_numbered(number, lock=True), expected_version)
        newest = policies.newest_revision(draft.instance).document
        before = draft.document
        draft.document = _checked(
            restore_secrets(merge_changes(before, changes), before, newest), draft.instance
        )
        policies.refuse_newly_misplaced(draft.document, before, newest)
        policies.refuse_unwritable_spools(draft.instance.name, draft.document, before, newest)
        draft.title = (title.strip() or draft.title)[:200] if title is not None else draft.title
        draft.version += 1
        draft.save()
        audit.record(
            actor,
            "draft.change",
            f"{draft.instance.name}: {draft.title}",
            after=redact_secrets(dict(changes)),
        )
    return draft


def delete(actor: Actor, number: int, *, expected_version: int | None = None, reason: str = "") -> None:
    """Delete a draft. Raises OperatorError `unknown_draft` or `draft_changed`."""
    with transaction.atomic():
        draft = _expected(draft_numbered(number, lock=True), expected_version)
        audit.record(
            actor,
            "draft.delete",
            f"{draft.instance.name}: {draft.title}",
            before=redact_secrets(draft.document),
            reason=reason,
        )
        draft.delete()


def preview(draft: PolicyDraft, rollout: rollouts.RolloutPlan | None = None) -> DraftPreview:
    """Return the effect of publishing a draft on the clients connected now.

    `rollout` previews a staged rollout. Raises OperatorError `bad_rollout`.
    """
    return preview_document(draft.instance, draft.document, rollout)


def preview_document(
    instance: Instance, document: Mapping[str, Any], rollout: rollouts.RolloutPlan | None = None
) -> DraftPreview:
    """Return the effect of publishing a document on the clients connected now.

    Raises OperatorError `bad_rollout`.
    """
    if rollout is not None:
        rollouts.validate(rollout)
    newest = policies.newest_revision(instance)
    differences = diff_documents(newest.document, document)
    try:
        policy = PolicyDocument.from_dict({**document, "revision": newest.number + 1})
    except OperatorError as problem:
        return DraftPreview(list(problem.details.get("problems") or [problem.sentence]), differences)
    findings = review_policy(policy)
    if refused := policies.publish_problems(policy, findings):
        return DraftPreview(refused, differences, findings)
    try:
        made = policy.to_dict()
        orders = (
            {"policy": made, "staged": None}
            if rollout is None
            else policies.staged_orders(newest.document, _staged(instance, rollout, made))
        )
        with collect_unreachable() as unreached:
            effect = link_to(instance.name).call(PreviewPolicy(**policies.orders_as_request(orders)))
    except BrokerUnavailable as problem:
        return DraftPreview([], differences, findings, away=problem.sentence)
    except SluiceError as problem:
        return DraftPreview([problem.sentence], differences, findings)
    away = " ".join(problem.sentence for problem in unreached.values())
    members = tuple(sorted(address.member for address in unreached))
    return DraftPreview([], differences, findings, effect, away, members)


def _staged(instance: Instance, plan: rollouts.RolloutPlan, document: dict[str, Any]) -> StagedRollout:
    """Return an unsaved rollout of an unsaved revision, for a preview."""
    rollout = rollouts.planned(instance, plan)
    rollout.revision = PolicyRevision(instance=instance, number=document["revision"], document=document)
    return rollout


def restrict_preview(preview: DraftPreview, patterns: list[str] | None) -> DraftPreview:
    """Return a preview that lists only clients matching `patterns`; None means all.

    The counts cover every client. Problems, findings and differences of entries can name any client, so they
    are omitted.
    """
    if patterns is None:
        return preview
    preview = replace(
        preview,
        problems=["The draft can't be published."] if preview.problems else [],
        findings=[],
        differences=[one for one in preview.differences if not is_entry_path(one.path)],
    )
    if preview.effect is None:
        return preview
    touched = [
        one
        for one in preview.effect.touched
        if any(name_matches(pattern, one.client) for pattern in patterns)
    ]
    acted_on = [
        one
        for one in preview.effect.acted_on
        if any(name_matches(pattern, one.client) for pattern in patterns)
    ]
    cut_off = [
        one
        for one in preview.effect.cut_off
        if any(name_matches(pattern, one.client) for pattern in patterns)
    ]
    unrecorded = [
        one
        for one in preview.effect.unrecorded
        if any(name_matches(pattern, one.client) for pattern in patterns)
    ]
    return replace(
        preview,
        effect=msgspec.structs.replace(
            preview.effect, touched=touched, acted_on=acted_on, cut_off=cut_off, unrecorded=unrecorded
        ),
    )


def publish(
    actor: Actor,
    number: int,
    *,
    reason: str,
    expected_version: int | None = None,
    rollout: rollouts.RolloutPlan | None = None,
    guard: policies.Guard | None = None,
) -> policies.PolicyChange:
    """Make a draft the policy, for all clients or in a staged rollout, and delete the draft.

    Args:
        actor: The operator.
        number: Id of the draft.
        reason: Reason for the audit.
        expected_version: Version of the draft that the operator has read; None skips the check.
        rollout: First clients of a staged rollout; None for all clients.
        guard: Called before anything is stored; raises to refuse. It asks brokers, which takes seconds.

    Raises:
        OperatorError: `draft_changed` if the draft was edited meanwhile, `revision_changed` if another
            revision was published since the draft was created, `bad_policy`, and any error of `guard`. Then
            nothing is published.
    """
    draft = _expected(draft_numbered(number), expected_version)
    instance, base = draft.instance, draft.base

    def remove_published(_revision: PolicyRevision, _before: PolicyRevision) -> None:
        _remove_unchanged(draft)

    # The draft's base is the expected revision, so that one of two concurrent publications fails.
    if rollout is not None:
        change = rollouts.start(
            actor, instance, draft.document, rollout, reason=reason, expected_revision=base, guard=guard,
            first=remove_published,
        )  # fmt: skip
    else:
        change = policies.publish(
            actor,
            draft.document,
            reason=reason,
            instance_name=instance.name,
            expected_revision=base,
            first=remove_published,
            guard=guard,
        )
    if change.revision.number == base:  # the draft changed nothing
        _remove_unchanged(draft)
    return change


def _remove_unchanged(draft: PolicyDraft) -> None:
    """Remove a draft that is being published, if it is the version that was read.

    Raises OperatorError draft_changed, unknown_draft.
    """
    with transaction.atomic():
        _expected(draft_numbered(draft.pk, lock=True), draft.version).delete()


def merge_changes(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with changes merged in. Transports are matched by name; null removes a transport."""
    made = dict(document)
    for key, value in changes.items():
        if key == "transports" and isinstance(value, Mapping):
            made[key] = _transports(made.get(key) or [], value)
        elif isinstance(value, Mapping) and isinstance(made.get(key), Mapping):
            made[key] = merge_changes(made[key], value)
        else:
            made[key] = value
    return made


def _transports(listed: Any, changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the transports with changes by name merged in. Raises OperatorError `bad_policy`."""
    is_valid = isinstance(listed, list) and all(
        isinstance(one, Mapping) and isinstance(one.get("name"), str) for one in listed
    )
    if not is_valid or not all(change is None or isinstance(change, Mapping) for change in changes.values()):
        raise OperatorError(
            "bad_policy", "Each transport must be an object with a name.", "Send the complete list instead."
        )
    by_name = {transport["name"]: transport for transport in listed}
    for name, change in changes.items():
        if change is None:
            by_name.pop(name, None)
        else:
            by_name[name] = {"name": name, **merge_changes(by_name.get(name, {}), change)}
    return list(by_name.values())


def _checked(document: Mapping[str, Any], instance: Instance) -> dict[str, Any]:
    """Return the editable parts of a document. Setting values may be invalid, but unknown parts are refused.

    Raises:
        OperatorError: `bad_policy`.
    """
    if unknown := [key for key in document if key not in (*EDITABLE, "revision")]:
        raise OperatorError(
            "bad_policy", f"A policy has no part {unknown[0]!r}.", f"The parts are {', '.join(EDITABLE)}."
        )
    made = {key: document[key] for key in EDITABLE if key in document}
    if misshapen := _misshapen(made):
        raise OperatorError(
            "bad_policy", f"{misshapen} has the wrong type.", "Compare it with the document of a policy."
        )
    text = json.dumps(made)
    if len(text) > MAX_CHARACTERS or "\\u0000" in text:
        raise OperatorError(
            "bad_policy",
            f"A draft can have at most {MAX_CHARACTERS} characters, and none of them may be NUL.",
            "Shorten the draft.",
        )
    if isinstance(made.get("instance"), Mapping):
        made["instance"] = {**made["instance"], "name": instance.name}
    return made


def _misshapen(document: Mapping[str, Any]) -> str:
    """Return the name of the first part with a wrong JSON type, or "".

    A part must be an object or a list of objects, as in a policy. The values of its settings aren't checked.
    """
    access = document.get("access") or {}
    for key in OBJECTS:
        if not isinstance(document.get(key) or {}, Mapping):
            return key
    for key, listed in (
        *((key, document.get(key)) for key in LISTS),
        *((f"access.{key}", access.get(key)) for key in access),
    ):
        if listed is not None and (
            not isinstance(listed, list) or not all(isinstance(entry, Mapping) for entry in listed)
        ):
            return key
    reader, instance = DocumentReader(), document.get("instance") or {}
    read_journaled_topics(reader, instance, "journaled_topics", "instance")
    for key in ("unjournaled_topics", "sync_members", "sync_topics"):
        reader.read_texts(instance, key, "instance", ())
    if reader.problems:
        return reader.problems[0]
    names = [transport.get("name") for transport in document.get("transports") or []]
    return "" if all(isinstance(name, str) for name in names) else "a transport's name"


def _expected(draft: PolicyDraft, version: int | None) -> PolicyDraft:
    """Return the draft. Raises OperatorError `draft_changed` if it has another version than expected."""
    if version is not None and version != draft.version:
        raise OperatorError(
            "draft_changed",
            f"The draft is at version {draft.version}, not {version}.",
            "Load it again and repeat the change.",
            version=draft.version,
        )
    return draft
