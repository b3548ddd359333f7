"""Pending changes are applied as previewed; a changed draft or a new type of warning requires another
preview.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker_core.errors import OperatorError
from console.choices import PendingChangeKind
from console.models import Instance, PolicyDraft, PolicyRevision
from console.services import drafts
from console.services.actors import Actor, access_of
from console.services.pending_changes import service
from console.services.pending_changes.kinds import CHANGE_KINDS
from tests.support.fake_broker import FakeBroker


@pytest.fixture
def maria(operator: Any) -> Actor:
    return Actor("person", "maria", operator.pk, access=access_of(operator))


def held_draft(actor: Actor, changes: dict[str, Any]) -> PolicyDraft:
    draft = drafts.create_draft(actor, "limits")
    drafts.edit_draft(actor, draft.pk, changes)
    service.add_draft(actor, drafts.draft_numbered(draft.pk))
    return draft


def apply(actor: Actor, plan: str) -> str:
    """Apply with confirmation; return the error code, or "" on success."""
    try:
        (outcome,) = service.apply_changes(actor, "because", confirmed=True, plan=plan)
    except OperatorError as problem:
        return problem.code
    assert outcome.done
    return ""


def test_a_draft_that_another_operator_edited_since_is_shown_again(
    maria: Actor, broker: FakeBroker, instance: Instance
) -> None:
    draft = held_draft(maria, {"client_policy": {"client_max_capacity": 20}})
    shown = service.list_changes(maria).digest
    otto = Actor("person", "otto", maria.user_id, access=maria.access)
    drafts.edit_draft(otto, draft.pk, {"client_policy": {"client_max_capacity": 1}})
    before = PolicyRevision.objects.count()
    assert apply(maria, shown) == "plan_changed"
    assert PolicyRevision.objects.count() == before
    assert apply(maria, service.list_changes(maria).digest) == ""


def test_a_tick_is_for_the_warnings_that_were_shown(
    maria: Actor, broker: FakeBroker, instance: Instance
) -> None:
    """A confirmation does not cover readers that connect after the preview."""
    limits = {"pool": {"message_memory_limit": 2**60}, "instance": {"journaled_topics": ["orders.>"]}}
    held_draft(maria, limits)
    shown = service.list_changes(maria)
    assert shown.warnings
    broker.unrecorded = ["desk-1"]
    assert apply(maria, shown.digest) == "plan_changed"
    assert apply(maria, service.list_changes(maria).digest) == ""


def test_a_draft_that_is_edited_while_pending_changes_is_applied_stays(
    maria: Actor, broker: FakeBroker, instance: Instance
) -> None:
    draft = held_draft(maria, {"client_policy": {"client_max_capacity": 20}})
    (planned,) = service.list_changes(maria).planned
    drafts.edit_draft(maria, draft.pk, {"client_policy": {"client_max_capacity": 1}})
    with pytest.raises(OperatorError) as caught:
        CHANGE_KINDS[PendingChangeKind.POLICY].do(maria, planned.item, "because")
    assert caught.value.code == "draft_changed" and PolicyDraft.objects.get() == draft


def test_other_figures_of_the_same_warnings_are_no_other_preview(
    maria: Actor, broker: FakeBroker, instance: Instance
) -> None:
    broker.unrecorded = ["desk-1"]
    held_draft(maria, {"instance": {"journaled_topics": ["orders.>"]}})
    shown = service.list_changes(maria).digest
    broker.unrecorded = ["desk-1", "desk-2", "desk-3"]
    assert apply(maria, shown) == ""
