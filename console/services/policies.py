"""Changes of policies. Each edits the desired rows, stores them as a new immutable revision, and tells the broker.

The database is what counts: a broker that can't be told now loads the newest revision when it returns, and `reconcile`
asks a running one again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from broker_core.config import PolicyDocument, default_policy
from broker_core.errors import OperatorError, SluiceError
from console.broker_link import link_to
from console.models import ClientPolicy, Instance, PolicyRevision, PoolPolicy, Transport
from console.queries import policies as read
from console.services import audit, reports
from console.services.actions.defaults import make_defaults
from console.services.actors import SYSTEM, Actor


@dataclass(frozen=True, slots=True)
class Change:
    """What came of an edit: the new revision, and whether the running broker took it up (`problem` says why not)."""

    revision: PolicyRevision
    applied: bool
    problem: str = ""


def document_in_force(instance_name: str) -> dict[str, Any]:
    """The policy document an instance shall run; makes the defaults the first time."""
    instance = ensure_instance(instance_name)
    newest = read.newest_revision(instance)
    if newest is None:
        raise OperatorError("unknown_revision", f"{instance_name} has no revision.", "Restore the database.")
    document: dict[str, Any] = newest.document
    return document


def ensure_instance(name: str) -> Instance:
    """The instance of that name; makes it with the default policy as revision 1, and its weekly archive, if new."""
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
) -> Change:
    """Change one transport: host, port, enabled, and what differs in `pool` and `client_policy`."""

    def edit(instance: Instance) -> None:
        transport = Transport.objects.filter(instance=instance, name=name).first()
        if transport is None:
            raise OperatorError("unknown_transport", f"There is no transport {name!r}.", "See /api/v1/transports.")
        _only(changes, ("host", "port", "enabled", "pool", "client_policy"), f"transport {name!r}")
        _assign(transport, changes, ("host", "port", "enabled"))
        _edit_policies(instance, transport, changes)

    return _change(actor, "transport.change", f"transport {name}", edit, reason, instance_name, expected_revision)


def change_instance_policy(
    actor: Actor,
    changes: Mapping[str, Any],
    *,
    reason: str = "",
    instance_name: str | None = None,
    expected_revision: int | None = None,
) -> Change:
    """Change the instance's `pool`, `client_policy`, and in `instance` what is journaled and the journal's files."""

    def edit(instance: Instance) -> None:
        _only(changes, ("pool", "client_policy", "instance"), "policy")
        journal = changes.get("instance") or {}
        _only(journal, read.INSTANCE_FIELDS, "instance")
        _assign(instance, journal, read.INSTANCE_FIELDS)
        _edit_policies(instance, None, changes)

    return _change(actor, "policy.change", "policy", edit, reason, instance_name, expected_revision)


def restore(actor: Actor, number: int, *, reason: str = "", instance_name: str | None = None) -> Change:
    """Make an older revision the policy again, as a new revision. A transport that it doesn't know is switched off.

    Raises OperatorError unknown_revision.
    """

    def edit(instance: Instance) -> None:
        document = read.revision_numbered(instance, number).document
        _assign(instance, document["instance"], read.INSTANCE_FIELDS)
        _edit_policies(instance, None, document)
        known = {transport.name: transport for transport in Transport.objects.filter(instance=instance)}
        for wanted in document["transports"]:
            transport = known.pop(wanted["name"], None) or Transport(instance=instance)
            _assign(transport, wanted, read.TRANSPORT_FIELDS)
            _edit_policies(instance, transport, wanted)
        for transport in known.values():
            _assign(transport, {"enabled": False}, ("enabled",))

    return _change(actor, "policy.restore", f"revision {number}", edit, reason, instance_name, None)


def tell_broker(revision: PolicyRevision) -> Change:
    """Ask the running broker to take up a revision, and store what it reports."""
    instance = revision.instance
    try:
        answer = link_to(instance.name).call("apply", policy=revision.document)
    except SluiceError as problem:
        return Change(revision, False, problem.sentence)
    running = int((answer or {}).get("revision", 0))
    reports.record_revision(instance, running, timezone.now())
    if running != revision.number:
        return Change(revision, False, f"The broker runs revision {running}.")
    return Change(revision, True)


def reconcile() -> list[Change]:
    """Tell every broker that reports another revision than the one wanted. Called each minute."""
    told = []
    for state in read.in_force_everywhere():
        if state["running"] is not None and state["running"] != state["wanted"]:
            newest = read.newest_revision(read.instance_named(state["instance"]))
            if newest is not None:
                told.append(tell_broker(newest))
    return told


def _change(
    actor: Actor,
    action: str,
    target: str,
    edit: Callable[[Instance], None],
    reason: str,
    instance_name: str | None,
    expected_revision: int | None,
) -> Change:
    """Edit under the instance's lock; one revision and one audit event in the same transaction; then tell."""
    name = ensure_instance(instance_name or settings.SLUICE_INSTANCE).name
    with transaction.atomic():
        instance = Instance.objects.select_for_update().get(name=name)
        before = read.newest_revision(instance)
        assert before is not None  # ensure_instance made revision 1
        if expected_revision is not None and expected_revision != before.number:
            raise OperatorError(
                "revision_changed",
                f"The policy is at revision {before.number}, not {expected_revision}.",
                "Read it again and repeat the change.",
                revision=before.number,
            )
        edit(instance)
        document = read.desired_document(instance, before.number + 1)
        PolicyDocument.from_dict(document)
        if {**document, "revision": 0} == {**before.document, "revision": 0}:
            return _unchanged(before)
        revision = _store(instance, document, actor, reason)
        audit.record(
            actor, action, f"{name}: {target}", before=before.document, after=document, reason=reason
        )
    return tell_broker(revision)


def _unchanged(newest: PolicyRevision) -> Change:
    """An edit that changes nothing makes no revision."""
    running = read.in_force(newest.instance)
    return Change(newest, running["converged"], running["why"])


def _store(instance: Instance, document: dict[str, Any], actor: Actor, reason: str) -> PolicyRevision:
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
    document = default_policy(
        name, tcp_port=settings.SLUICE_TCP_PORT, websocket_port=settings.SLUICE_WEBSOCKET_PORT
    ).to_dict()
    instance = Instance(**document["instance"])
    _save(instance)
    for made in document["transports"]:
        pool, client_policy = made.pop("pool"), made.pop("client_policy")
        transport = Transport(instance=instance, **made)
        _save(transport)
        PoolPolicy.objects.create(instance=instance, transport=transport, **pool)
        ClientPolicy.objects.create(instance=instance, transport=transport, **client_policy)
    PoolPolicy.objects.create(instance=instance, **document["pool"])
    ClientPolicy.objects.create(instance=instance, **document["client_policy"])
    revision = _store(instance, read.desired_document(instance, 1), SYSTEM, "The defaults.")
    make_defaults(instance)
    audit.record(SYSTEM, "instance.create", name, after=revision.document)
    return instance


def _edit_policies(instance: Instance, transport: Transport | None, changes: Mapping[str, Any]) -> None:
    where = f"transport {transport.name!r}" if transport else "policy"
    for key, model, fields in (
        ("pool", PoolPolicy, read.POOL_FIELDS),
        ("client_policy", ClientPolicy, read.CLIENT_FIELDS),
    ):
        wanted = changes.get(key)
        if wanted is None:
            continue
        _only(wanted, fields, f"{where}: {key}")
        row = model.objects.filter(instance=instance, transport=transport).first()
        _assign(row or model(instance=instance, transport=transport), wanted, fields)


def _only(changes: Any, known: tuple[str, ...], where: str) -> None:
    if not isinstance(changes, Mapping):
        raise _bad([f"{where} must be an object"])
    if unknown := [key for key in changes if key not in known]:
        raise _bad([f"{where}: there is no setting {key!r} to change" for key in unknown])


def _assign(row: Any, changes: Mapping[str, Any], fields: tuple[str, ...]) -> None:
    for name in fields:
        if name in changes:
            setattr(row, name, changes[name])
    _save(row)


def _save(row: Any) -> None:
    """The one way into these tables: the model's own checks, every problem named."""
    try:
        row.full_clean()
    except ValidationError as invalid:
        raise _bad([f"{field}: {' '.join(texts)}" for field, texts in invalid.message_dict.items()]) from invalid
    row.save()


def _bad(problems: list[str]) -> OperatorError:
    return OperatorError(
        "bad_policy",
        "The policy can't be used: " + "; ".join(problem.rstrip(".") for problem in problems) + ".",
        "Correct the settings named and save again.",
        problems=problems,
    )
