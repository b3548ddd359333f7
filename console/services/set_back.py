"""Resolution of a database that was set back: brokers have newer policies on disk than the database.

An operator chooses which one applies. Either way the brokers' policies first become revisions of the
database. So no document is lost, brokers find their revision there, and one number never names two
policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from django.db import transaction

from broker_core.documents.requests import GetPolicy
from broker_core.errors import OperatorError
from console import current_instance
from console.access.policy_secrets import redact_secrets
from console.broker_link import ask_all_brokers
from console.models import Instance
from console.queries import policies as read
from console.services import audit, policies, policy_rows
from console.services.actors import Actor
from console.services.policies import PolicyChange

Document = Mapping[str, Any]


class SetBackChoice(StrEnum):
    """Policy that an operator prefers: the one that brokers have stored, or the database's."""

    STORED = "stored"
    DATABASE = "database"


def resolve_set_back(
    actor: Actor, choice: SetBackChoice, *, reason: str = "", instance_name: str | None = None
) -> PolicyChange:
    """Put the preferred policy in force on all brokers of an instance.

    `STORED` means the newest stored policy if brokers have several. A staged rollout, in the database or in
    the brokers' policies, ends: the revision before it is put in force.

    Raises:
        OperatorError: `policy_not_set_back` when no answering broker has a newer policy; `bad_policy`.
    """
    name = policies.ensure_instance(instance_name or current_instance.instance_name()).name
    documents, in_force = _stored_policies(name)
    with transaction.atomic():
        instance = Instance.objects.select_for_update().get(name=name)
        before = newest = policies.newest_revision(instance)
        for document in documents:
            number = max(newest.number + 1, _number(document))
            newest = policies.store_revision(
                instance, document, number, actor, "Restored from the broker's copy."
            )
        rollout = read.running_rollout(instance)
        if choice is SetBackChoice.STORED:
            policy_rows.write_document(instance, {**in_force, "revision": 1})
        elif rollout is not None:
            # The rows are those of the staged revision: go back to the revision before it.
            policy_rows.write_document(instance, {**rollout.base.document, "revision": 1})
        revision = policies.store_rows(instance, newest, actor, reason or _REASONS[choice])
        policies.end_rollout(instance, revision.number)
        audit.record(
            actor,
            f"policy.resolve_{choice}",
            f"{name}: revision {revision.number}",
            before=redact_secrets(before.document),
            after=redact_secrets(revision.document),
            reason=reason,
        )
    return policies.apply_at_broker(revision, decided=True)


_REASONS = {
    SetBackChoice.STORED: "Restored from the broker's disk.",
    SetBackChoice.DATABASE: "The database's policy, accepted in place of the broker's.",
}


def _stored_policies(name: str) -> tuple[list[Document], Document]:
    """Return the policies that brokers have stored and the database lacks.

    Returns:
        All of them, oldest first and staged ones included; and the newest that isn't staged.

    Raises:
        OperatorError: `policy_not_set_back`.
    """
    answers = [reply.answer for reply in ask_all_brokers(name, GetPolicy()) if reply.answer is not None]
    set_back = [one for one in answers if one.is_set_back]
    if not set_back:
        raise OperatorError(
            "policy_not_set_back",
            f"The database has the policy of each broker of {name} that responds.",
            "See the page Policies for the revision in force.",
        )
    found: list[Document] = []
    for document in [one.policy for one in set_back] + [
        one.staged for one in set_back if one.staged is not None
    ]:
        if document not in found:
            found.append(document)
    return sorted(found, key=_number), max((one.policy for one in set_back), key=_number)


def _number(document: Document) -> int:
    return int(document["revision"])
