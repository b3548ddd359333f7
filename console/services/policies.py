"""Changes of policies.

Each function edits the desired rows, stores them as a new immutable revision, and sends it to the broker.

The database is authoritative. A broker that can't be reached loads the newest revision when it returns;
`reconcile` sends the revision to a running broker again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import IntegrityError, transaction
from django.utils import timezone

from broker_core.access.policy import access_problems
from broker_core.config import PolicyDocument, default_policy
from broker_core.config.document import (
    DirectoryDefaults,
    misplaced_directories,
    misplaced_paths,
    outside_roots_error,
)
from broker_core.documents.requests import ApplyPolicy, CheckSpools, StagedPolicy
from broker_core.errors import OperatorError, SluiceError
from broker_core.slow_clients.rules.review import PolicyFinding, Severity, review_policy
from broker_core.subscriptions.destinations import destination_problems
from console import current_instance
from console.access.policy_secrets import redact_secrets, restore_secrets
from console.broker_link import BrokerUnavailable, ask_all_brokers
from console.choices import PolicyEntryKind, RolloutState
from console.models import Instance, PolicyRevision, StagedRollout, Transport
from console.queries import policies as read
from console.services import audit, broker_reports, policy_rows
from console.services.actions.defaults import make_defaults
from console.services.actors import SYSTEM, Actor

First = Callable[[PolicyRevision, PolicyRevision], None]
"""Called with the new revision and the previous one, in the transaction that stores the new one."""
Guard = Callable[[Instance, Mapping[str, Any]], None]
"""Called with the document that would become the policy, before anything is stored. Raises to refuse it."""
OF_A_TRANSPORT = tuple(field for field in read.TRANSPORT_COLUMNS if field not in ("name", "kind"))
"""Fields of a transport that a change may set."""
PATH_MAX: Final = 4_096
"""Maximum characters of a directory's path on Linux."""
SPOOL_CHECK_S: Final = 3.0
"""Seconds within which a broker must answer whether it can write spools to a directory."""


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """Result of a change: the new revision, and whether every running broker has put it in force.

    `problem` says why a broker hasn't. `withdrawn` says why a staged revision is no longer in force anywhere:
    its rollout ended automatically before the brokers answered. Otherwise it is "".
    """

    revision: PolicyRevision
    applied: bool
    problem: str = ""
    withdrawn: str = ""
    findings: tuple[PolicyFinding, ...] = ()
    """Settings of the new policy that are allowed but unwise."""


def document_in_force(instance_name: str) -> dict[str, Any]:
    """Return the policy document that an instance must run.

    Creates an unknown instance with the default policy.
    """
    document: dict[str, Any] = newest_revision(ensure_instance(instance_name)).document
    return document


def newest_revision(instance: Instance) -> PolicyRevision:
    """Return the newest revision, which brokers must run.

    Raises OperatorError `unknown_revision` if there is none.
    """
    newest = read.newest_revision(instance)
    if newest is None:
        raise OperatorError("unknown_revision", f"{instance.name} has no revision.", "Restore the database.")
    return newest


def has_policy(instance_name: str, document: Mapping[str, Any]) -> bool:
    """Return whether the database has a policy, as the revision of its number or of a later one.

    If not, the policy comes from another database, or from this one before a backup was restored.
    """
    rows = PolicyRevision.objects.filter(instance__name=instance_name, number__gte=document["revision"])
    documents = rows.order_by("number").values_list("document", flat=True)
    return any(_is_stored_as(document, one) for one in documents.iterator(100))


def _is_stored_as(document: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    try:
        return same_policy(document, stored)
    except SluiceError:  # an old revision that this release can't read
        return False


def policy_orders(instance_name: str) -> dict[str, Any]:
    """Return orders for a broker: the `policy`, and in a staged rollout `staged` with its first clients."""
    instance = ensure_instance(instance_name)
    newest, rollout = newest_revision(instance), read.running_rollout(instance)
    if rollout is None or rollout.revision_id != newest.pk:
        return {"policy": newest.document, "staged": None}
    made = read.decisions_by_member(rollout)
    return staged_orders(rollout.base.document, rollout, made)


def staged_orders(
    base: Mapping[str, Any], rollout: StagedRollout, made: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return orders to run, or to preview, a rollout's revision for its clients and `base` for the others."""
    staged = {
        "policy": rollout.revision.document,
        "client": rollout.client,
        "share": rollout.share,
        "allowances": rollout.allowances,
        "made": dict(made or {}),
    }
    return {"policy": base, "staged": staged}


def ensure_instance(name: str) -> Instance:
    """Return the instance of that name.

    If it is new, create it with the default policy and a weekly archive action.
    """
    found = Instance.objects.filter(name=name).first()
    if found is not None:
        return found
    try:
        with transaction.atomic():
            return _make_instance(name)
    except IntegrityError:
        return Instance.objects.get(name=name)  # another process was first


def change_transport(
    actor: Actor,
    name: str,
    changes: Mapping[str, Any],
    *,
    reason: str = "",
    instance_name: str | None = None,
    expected_revision: int | None = None,
    guard: Guard | None = None,
) -> PolicyChange:
    """Change one transport: its listener, its authentication, and its own `pool` and `client_policy`.

    Args:
        actor: The operator.
        name: Name of the transport.
        changes: Changed settings.
        reason: Reason for the audit.
        instance_name: The instance; None means the current one.
        expected_revision: Revision that the operator has read; None skips the check.
        guard: Called before anything is stored; raises to refuse.

    Raises:
        OperatorError: `unknown_transport`, `rollout_running`, `revision_changed` or `bad_policy`.
    """

    def edit(instance: Instance) -> None:
        refuse_during_rollout(instance)
        transport = Transport.objects.filter(instance=instance, name=name).first()
        if transport is None:
            raise OperatorError(
                "unknown_transport", f"The transport {name!r} doesn't exist.", "See /api/v1/transports."
            )
        policy_rows.check_known_keys(
            changes, (*OF_A_TRANSPORT, "pool", "client_policy"), f"transport {name!r}"
        )
        policy_rows.assign_fields(transport, changes, OF_A_TRANSPORT)
        policy_rows.edit_limits(instance, transport, changes)

    return _change(
        actor,
        "transport.change",
        f"transport {name}",
        edit,
        reason,
        instance_name,
        expected_revision,
        guard=guard,
    )


def change_instance_policy(
    actor: Actor,
    changes: Mapping[str, Any],
    *,
    reason: str = "",
    instance_name: str | None = None,
    expected_revision: int | None = None,
    guard: Guard | None = None,
) -> PolicyChange:
    """Change the instance's limits, journal settings, access, and lists of entries.

    `changes` may have `pool`, `client_policy`, `instance` (journal settings), `access` and the lists. The
    lists (`xap`, `activemq`, `qpid`, `rules` and others) and `access` are replaced as a whole. A password
    or token that reads "set" keeps its value. Arguments as for `change_transport`.

    Raises:
        OperatorError: `rollout_running`, `revision_changed` or `bad_policy`.
    """

    def edit(instance: Instance) -> None:
        refuse_during_rollout(instance)
        policy_rows.check_known_keys(
            changes, ("pool", "client_policy", "instance", "access", *PolicyEntryKind.values), "policy"
        )
        journal = changes.get("instance") or {}
        policy_rows.check_known_keys(journal, read.INSTANCE_FIELDS, "instance")
        policy_rows.assign_fields(instance, journal, read.INSTANCE_FIELDS)
        policy_rows.edit_limits(instance, None, changes)
        for kind in PolicyEntryKind.values:
            if kind in changes:
                policy_rows.write_entries(instance, kind, changes[kind])
        if "access" in changes:
            restored = restore_secrets({"access": changes["access"]}, newest_revision(instance).document)
            policy_rows.write_access(instance, restored["access"])

    return _change(
        actor, "policy.change", "policy", edit, reason, instance_name, expected_revision, guard=guard
    )


def restore(
    actor: Actor,
    number: int,
    *,
    reason: str = "",
    instance_name: str | None = None,
    expected_revision: int | None = None,
    first: First | None = None,
    guard: Guard | None = None,
) -> PolicyChange:
    """Make an older revision the policy again, as a new revision.

    A transport that the older revision lacks is disabled. `first` is used as by `publish`.

    Raises:
        OperatorError: `unknown_revision`, `revision_withdrawn`, `revision_changed` or `bad_policy`.
    """

    def edit(instance: Instance) -> None:
        refuse_withdrawn(instance, number)
        policy_rows.write_document(instance, read.revision_numbered(instance, number).document)

    return _change(
        actor,
        "policy.restore",
        f"revision {number}",
        edit,
        reason,
        instance_name,
        expected_revision,
        first,
        guard,
    )


def refuse_during_rollout(instance: Instance) -> None:
    """Raise OperatorError `rollout_running` while a staged rollout runs.

    A partial change is based on the newest revision. In a rollout that is the staged one, so the change
    would put it in force for every client.
    """
    rollout = read.running_rollout(instance)
    if rollout is not None:
        raise OperatorError(
            "rollout_running",
            f"Revision {rollout.revision.number} is staged; a change now would put it in force for all "
            "clients.",
            "Promote or stop the rollout first.",
            revision=rollout.revision.number,
        )


def refuse_withdrawn(instance: Instance, number: int) -> None:
    """Raise OperatorError `revision_withdrawn` if a staged rollout of the revision was withdrawn."""
    withdrawal = read.revision_numbered(instance, number).withdrawn
    if withdrawal:
        raise OperatorError(
            "revision_withdrawn",
            f"Revision {number} was withdrawn during its staged rollout: {withdrawal}",
            "Create a draft of the revision, change the rules that act too often, and publish the draft.",
        )


def publish(
    actor: Actor,
    document: Mapping[str, Any],
    *,
    reason: str = "",
    instance_name: str | None = None,
    expected_revision: int | None = None,
    first: First | None = None,
    guard: Guard | None = None,
) -> PolicyChange:
    """Make a whole document the policy, as a new revision.

    Args:
        actor: The operator.
        document: The document, from a draft or an import.
        reason: Reason for the audit.
        instance_name: The instance; None means the current one.
        expected_revision: Revision that the operator has read; None skips the check.
        first: Called with the new revision and the previous one, in the same transaction and before brokers
            get it.
        guard: Called before anything is stored; raises to refuse.

    Raises:
        OperatorError: `revision_changed`, `bad_policy`, and any error of `guard`.
    """

    def edit(instance: Instance) -> None:
        policy_rows.write_document(
            instance, {**restore_secrets(document, newest_revision(instance).document), "revision": 1}
        )

    return _change(
        actor, "policy.publish", "policy", edit, reason, instance_name, expected_revision, first, guard
    )


def apply_at_broker(revision: PolicyRevision, *, decided: bool = False) -> PolicyChange:
    """Ask the running brokers to apply a revision, and store the revision that each reports.

    `decided`: an operator prefers this revision to a policy that a broker has stored and the database lacks.
    """
    instance, problems, withdrawing, newer = revision.instance, [], [], 0
    order = ApplyPolicy(**orders_as_request(policy_orders(instance.name)), decided=decided)
    for reply in ask_all_brokers(instance.name, order):
        if reply.answer is None:
            running = _newer_revision(revision, reply.error)
            newer = max(newer, running)
            if not running:
                problems.append(reply.error.sentence if reply.error is not None else "")
            continue
        broker_reports.record_revision(instance, reply.answer.revision, timezone.now(), member=reply.member)
        broker = f"broker{reply.member and f' {reply.member}'}"
        if reply.answer.withdrawn == revision.number:
            withdrawing.append(broker)
        elif reply.answer.revision > revision.number:
            newer = max(newer, reply.answer.revision)
        elif reply.answer.revision != revision.number:
            problems.append(f"The {broker} runs revision {reply.answer.revision}.")
    applied = not problems and not newer
    withdrawn = read.revision_numbered(instance, revision.number).withdrawn if newer else ""
    if newer and not withdrawn:
        problems.append(f"Revision {newer} has replaced it.")
    if withdrawing and not withdrawn:
        withdrawn = f"The {' and the '.join(withdrawing)} used up the decisions that the rollout allows."
    return PolicyChange(revision, applied, " ".join(problems), withdrawn)


def _newer_revision(revision: PolicyRevision, error: SluiceError | None) -> int:
    """Return the newer revision of the database that a broker runs and therefore refused this one; or 0."""
    if not isinstance(error, OperatorError) or error.code != "policy_set_back":
        return 0
    running = int(error.details.get("running", 0))
    newest = newest_revision(revision.instance).number
    return running if revision.number < running <= newest else 0


def orders_as_request(ordered: Mapping[str, Any]) -> dict[str, Any]:
    """Return orders as the fields of a request to apply or to preview them."""
    staged = ordered["staged"]
    return {
        "policy": _raw(ordered["policy"]),
        "staged": staged and StagedPolicy(**{**staged, "policy": _raw(staged["policy"])}),
    }


def _raw(document: Mapping[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(document))


def reconcile() -> list[PolicyChange]:
    """Send the newest revision to each broker that reports another one, and return the results.

    Called each minute.
    """
    behind = [
        state["instance"]
        for state in read.installation_policy_status()
        if state["running"] is not None and state["running"] != state["wanted"]
    ]
    newest = (read.newest_revision(read.instance_named(name)) for name in dict.fromkeys(behind))
    return [apply_at_broker(one) for one in newest if one is not None]


def store_revision(
    instance: Instance, document: Mapping[str, Any], number: int, actor: Actor, reason: str
) -> PolicyRevision:
    """Store a document unchanged as the revision of that number. The editable rows stay.

    Call it under the instance's lock.
    """
    return _store(instance, {**document, "revision": number}, actor, reason)


def store_rows(instance: Instance, newest: PolicyRevision, actor: Actor, reason: str) -> PolicyRevision:
    """Store the editable rows as the next revision, and return it; return `newest` if nothing differs.

    Call it under the instance's lock. Raises OperatorError `bad_policy`.
    """
    document = read.desired_document(instance, newest.number + 1)
    _reviewed(document)
    return newest if same_policy(document, newest.document) else _store(instance, document, actor, reason)


def _change(
    actor: Actor,
    action: str,
    target: str,
    edit: Callable[[Instance], None],
    reason: str,
    instance_name: str | None,
    expected_revision: int | None,
    first: First | None = None,
    guard: Guard | None = None,
) -> PolicyChange:
    """Edit under the instance's lock, store revision and audit event, then send the revision to the brokers.

    Revision and audit event are one transaction. An edit without effect stores nothing.
    """
    name = ensure_instance(instance_name or current_instance.instance_name()).name
    if guard is not None:
        expected_revision = _call_guard(guard, name, edit, expected_revision)
    with transaction.atomic():
        instance, before, document, findings = _edited(name, edit, expected_revision)
        if same_policy(document, before.document):
            return _unchanged(before)
        # Only a new directory is checked, so brokers are seldom asked under the lock.
        refuse_unwritable_spools(name, document, before.document)
        end_rollout(instance, before.number + 1)
        revision = _store(instance, document, actor, reason)
        if first is not None:
            first(revision, before)
        audit.record(
            actor,
            action,
            f"{name}: {target}",
            before=redact_secrets(before.document),
            after=redact_secrets(document),
            reason=reason,
        )
    return replace(apply_at_broker(revision), findings=tuple(findings))


def _call_guard(
    guard: Guard, name: str, edit: Callable[[Instance], None], expected_revision: int | None
) -> int:
    """Call `guard` with the document that an edit would make, and return the number of the base revision.

    The edit is rolled back first: a guard may ask the broker, which takes too long to hold the instance's
    lock.
    """
    with transaction.atomic():
        instance, before, document, _ = _edited(name, edit, expected_revision)
        transaction.set_rollback(True)
    if not same_policy(document, before.document):
        guard(instance, document)
    return before.number


def _edited(
    name: str, edit: Callable[[Instance], None], expected_revision: int | None
) -> tuple[Instance, PolicyRevision, dict[str, Any], list[PolicyFinding]]:
    """Lock the instance, edit its rows, and return instance, newest revision, new document and its findings.

    Raises:
        OperatorError: `revision_changed`, `bad_policy`, and any error of `edit`.
    """
    instance = Instance.objects.select_for_update().get(name=name)
    before = newest_revision(instance)
    if expected_revision is not None and expected_revision != before.number:
        raise OperatorError(
            "revision_changed",
            f"The policy is at revision {before.number}, not {expected_revision}.",
            "Load it again and repeat the change.",
            revision=before.number,
        )
    edit(instance)
    document = read.desired_document(instance, before.number + 1)
    return instance, before, document, _reviewed(document)


def end_rollout(instance: Instance, number: int) -> None:
    """Stop the rollout of a staged revision that revision `number` replaces."""
    rollout = read.running_rollout(instance)
    if rollout is not None:
        rollout.state, rollout.ended_at = RolloutState.STOPPED, timezone.now()
        rollout.why = f"Revision {number} replaced it."
        rollout.save()


def _reviewed(document: Mapping[str, Any]) -> list[PolicyFinding]:
    """Return the unwise settings of a document.

    Raises OperatorError `bad_policy` for an invalid or contradictory one.
    """
    policy = PolicyDocument.from_dict(document)
    findings = review_policy(policy)
    if refused := publish_problems(policy, findings):
        raise policy_rows.bad_policy_error(refused)
    return findings


def publish_problems(policy: PolicyDocument, findings: list[PolicyFinding]) -> list[str]:
    """Return the reasons why a valid document can't be published.

    Reasons are contradictions, and errors in its access, destinations and directories.
    """
    contradictions = [f"{one.where}: {one.sentence}" for one in findings if one.severity is Severity.REFUSE]
    found = access_problems(policy) + destination_problems(policy)
    return (
        contradictions
        + found
        + misplaced_directories(
            policy,
            settings.SLUICE_DIRECTORY_ROOTS,
            _reserved_directories(),
            _default_directories(),
        )
    )


def misplaced(setting: str, path: str) -> list[str]:
    """Return the problems of a policy's directory, as sentences that begin with the setting's name."""
    if len(path) > PATH_MAX:
        return [f"{setting}: more than {PATH_MAX} characters"]
    return misplaced_paths([(setting, Path(path))], settings.SLUICE_DIRECTORY_ROOTS, _reserved_directories())


def refuse_newly_misplaced(document: Mapping[str, Any], *known: Mapping[str, Any]) -> None:
    """Raise OperatorError `outside_roots` if a document names a directory outside the allowed ones.

    The document's values may be invalid otherwise. A directory that a `known` document already names is
    accepted, so that other settings can still be changed.
    """
    before = {one for other in known for one in _named_directories(other)}
    named = [one for one in _named_directories(document) if one not in before]
    if problems := [problem for setting, path in named for problem in misplaced(setting, path)]:
        raise outside_roots_error(problems)


def refuse_unwritable_spools(
    instance_name: str, document: Mapping[str, Any], *known: Mapping[str, Any]
) -> None:
    """Raise OperatorError `bad_spool_path` if a broker can't write spools to a directory of a document.

    Directories of `known` documents aren't checked. A broker that is away checks them when it applies the
    policy.
    """
    before = {one for other in known for one in _named_directories(other)}
    named = set(_named_directories(document)) - before
    paths = sorted({path for setting, path in named if setting.endswith("message_disk_path")})
    if not paths:
        return
    for reply in ask_all_brokers(instance_name, CheckSpools(paths=paths), timeout_s=SPOOL_CHECK_S):
        if reply.error is not None and not isinstance(reply.error, BrokerUnavailable):
            raise reply.error


def _named_directories(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield setting and path of each directory that a document names."""
    instance, pool = document.get("instance"), document.get("pool")
    parts = [("instance", instance, "journal_directory"), ("instance", instance, "archive_directory")]
    parts.append(("pool", pool, "message_disk_path"))
    parts += [
        (f"transport {transport.get('name')!r}", transport.get("pool"), "message_disk_path")
        for transport in document.get("transports") or ()
    ]
    for part, found, setting in parts:
        if isinstance(found, Mapping) and isinstance(path := found.get(setting), str):
            yield f"{part}: {setting}", path


def _reserved_directories() -> tuple[Path, ...]:
    return (*settings.SLUICE_RESERVED_DIRECTORIES, *settings.SLUICE_PIPELINE_DIRECTORIES)


def _default_directories() -> DirectoryDefaults:
    """Return the directories of a policy that names none."""
    return DirectoryDefaults(
        settings.SLUICE_JOURNAL_DIRECTORY, settings.SLUICE_ARCHIVE_DIRECTORY, settings.SLUICE_SPOOL_DIRECTORY
    )


def same_policy(document: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether two documents have equal settings, whatever their revisions."""
    first, second = {**document, "revision": 1}, {**before, "revision": 1}
    return first == second or PolicyDocument.from_dict(first) == PolicyDocument.from_dict(second)


def _unchanged(newest: PolicyRevision) -> PolicyChange:
    """Return the result of an edit that changed nothing, for which no revision is made."""
    running = read.policy_status(newest.instance)
    return PolicyChange(newest, running["converged"], running["why"])


def _store(instance: Instance, document: dict[str, Any], actor: Actor, reason: str) -> PolicyRevision:
    """Save a document as a revision, unconditionally. The caller holds the instance's lock."""
    user = get_user_model().objects.filter(pk=actor.user_id).first() if actor.user_id else None
    revision = PolicyRevision(
        instance=instance,
        number=document["revision"],
        document=document,
        author=actor.name[:200],
        author_user=user,
        reason=reason[:500],
    )
    revision.save()
    return revision


def _make_instance(name: str) -> Instance:
    """Create an instance with the default policy as revision 1 and the weekly archive action."""
    document = default_policy(
        name,
        tcp_port=settings.SLUICE_TCP_PORT,
        websocket_port=settings.SLUICE_WEBSOCKET_PORT,
        stomp_port=settings.SLUICE_STOMP_PORT,
        stomp_ws_port=settings.SLUICE_STOMP_WS_PORT,
    ).to_dict()
    instance = Instance(name=name)
    policy_rows.save_row(instance)
    policy_rows.write_document(instance, document)
    revision = _store(instance, read.desired_document(instance, 1), SYSTEM, "The defaults.")
    make_defaults(instance)
    audit.record(SYSTEM, "instance.create", name, after=revision.document)
    return instance
