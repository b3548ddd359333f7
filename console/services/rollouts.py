"""Staged rollouts: a revision is first in force for some clients, and is withdrawn if it would act too often.

Brokers hold the allowance of decisions. A broker doesn't carry out the first decision beyond it, and
returns to the base revision immediately. `stop_if_exceeded` then restores that revision for every client.
In a group, each member gets its part of the allowance at the start.

A rollout stages the settings that concern clients: their limits, the presets' entries and the rules.
Transports, pools and journaled topics belong to the instance: they change when the revision is in force
everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from broker_core.errors import OperatorError
from console.choices import RolloutState
from console.models import Decision, Instance, PolicyRevision, StagedRollout
from console.queries import policies as read
from console.services import audit, policies
from console.services.actors import SYSTEM, Actor
from console.units import labels
from console.units.format import number_exact

ENDED_CODES: Final = ("no_rollout", "revision_changed")
"""Error codes that mean that a rollout was ended concurrently."""


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """First clients of a rollout, by name pattern or share in percent, and its allowance of decisions."""

    client: str = ""
    share: int | None = None
    most_decisions: int = 0


def validate(plan: RolloutPlan) -> None:
    """Raise OperatorError `bad_rollout` if no rollout can start with this plan."""
    unsaved_rollout(plan)


def unsaved_rollout(plan: RolloutPlan) -> StagedRollout:
    """Return an unsaved rollout for a plan. Raises OperatorError `bad_rollout`."""
    rollout = StagedRollout(client=plan.client, share=plan.share, most_decisions=plan.most_decisions)
    try:
        rollout.full_clean(exclude=("instance", "revision", "base"))
    except ValidationError as invalid:
        raise OperatorError(
            "bad_rollout",
            f"The rollout is invalid: {' '.join(invalid.messages)}",
            "Enter a pattern of client names, or a share of 1 to 99 percent.",
        ) from invalid
    return rollout


def start(
    actor: Actor,
    instance: Instance,
    document: Mapping[str, Any],
    plan: RolloutPlan,
    *,
    reason: str,
    expected_revision: int | None,
    guard: policies.Guard | None = None,
    first: policies.First | None = None,
) -> policies.PolicyChange:
    """Publish a document for the first clients of a plan. `first` is as in `policies.publish`.

    Raises:
        OperatorError: `bad_rollout`, and the errors of `policies.publish` and `first`.
    """

    def begin(revision: PolicyRevision, base: PolicyRevision) -> None:
        if first is not None:
            first(revision, base)
        rollout = planned(instance, plan)
        rollout.revision, rollout.base = revision, base
        rollout.save()

    return policies.publish(
        actor,
        document,
        reason=reason,
        instance_name=instance.name,
        expected_revision=expected_revision,
        first=begin,
        guard=guard,
    )


def planned(instance: Instance, plan: RolloutPlan) -> StagedRollout:
    """Return an unsaved rollout for a plan, with each member's part of the allowance."""
    rollout = unsaved_rollout(plan)
    rollout.instance = instance
    rollout.allowances = share_out(plan.most_decisions, read.reachable_members(instance))
    return rollout


def share_out(allowance: int, members: Sequence[str]) -> dict[str, int]:
    """Divide an allowance between members.

    The first members by name get one more, so that the parts add up.
    """
    each, remainder = divmod(allowance, len(members))
    return {member: each + (index < remainder) for index, member in enumerate(sorted(members))}


def promote(
    actor: Actor,
    instance: Instance,
    *,
    expected_revision: int | None = None,
    reason: str = "",
    guard: policies.Guard | None = None,
) -> policies.PolicyChange:
    """Put the staged revision in force for all clients.

    Raises:
        OperatorError: `no_rollout`, `revision_changed`, and any error of `guard`.
    """
    if guard is not None:
        staged = _running(instance, expected_revision).revision
        guard(instance, staged.document)
        expected_revision = staged.number
    with transaction.atomic():
        # Lock the instance, so that the rollout can't be withdrawn meanwhile.
        Instance.objects.select_for_update().get(pk=instance.pk)
        rollout = _running(instance, expected_revision)
        _end(rollout, RolloutState.PUBLISHED, f"Put in force for all clients by {actor.name}.")
        audit.record(actor, "rollout.promote", str(rollout), reason=reason)
    return policies.apply_at_broker(rollout.revision)


def stop(
    actor: Actor,
    instance: Instance,
    *,
    reason: str,
    expected_revision: int | None = None,
    guard: policies.Guard | None = None,
) -> policies.PolicyChange:
    """Stop the rollout: its clients get the base revision again, as a new revision. Raises like `promote`."""
    return _go_back(actor, _running(instance, expected_revision), RolloutState.STOPPED, reason, guard)


def stop_if_exceeded(instance: Instance, withdrawn: int = 0) -> policies.PolicyChange | None:
    """Withdraw a rollout that has used up its allowance, and return the change; otherwise None.

    Called when decisions are reported. `withdrawn` is a revision that a broker has withdrawn itself, or 0.
    """
    rollout = read.running_rollout(instance)
    if rollout is None:
        return None
    exceeding, made = read.exceeding_decision(rollout), count_decisions(rollout)
    if exceeding is None and made <= rollout.most_decisions and rollout.revision.number != withdrawn:
        return None
    try:
        return _go_back(SYSTEM, rollout, RolloutState.RETURNED, _withdrawal_reason(rollout, made, exceeding))
    except OperatorError as problem:
        if problem.code in ENDED_CODES:
            # An operator ended the rollout first, and that decision stays.
            return None
        raise


def _withdrawal_reason(rollout: StagedRollout, made: int, exceeding: Decision | None) -> str:
    """Return why a rollout was withdrawn.

    `made` lacks decisions that aren't reported yet, so the text has it only if it exceeds the allowance.
    """
    maximum = rollout.most_decisions
    allowed = f"{number_exact(maximum)} decision{'' if maximum == 1 else 's'}"
    was = "was" if maximum == 1 else "were"
    if made > maximum:
        return f"{allowed} {was} allowed, and {number_exact(made)} carried out."
    if exceeding is None:
        return f"{allowed} {was} allowed, and the next one was not carried out."
    next_one = (
        f"The next one, on client {exceeding.client} by {labels.setting_label(exceeding.rule)}, "
        "was not carried out."
    )
    if not exceeding.member:
        return f"{allowed} {was} allowed. {next_one}"
    part = number_exact(rollout.allowances.get(exceeding.member, 0))
    return f"Member {exceeding.member} used its share of {part} of the {allowed} allowed. {next_one}"


def count_decisions(rollout: StagedRollout) -> int:
    """Return how many decisions of the staged revision brokers have reported as carried out."""
    return sum(read.decisions_by_member(rollout).values())


def _go_back(
    actor: Actor,
    rollout: StagedRollout,
    state: RolloutState,
    reason: str,
    guard: policies.Guard | None = None,
) -> policies.PolicyChange:
    """Restore the base revision, and end the rollout with `state` in the same transaction."""

    def ended(_revision: PolicyRevision, _before: PolicyRevision) -> None:
        if StagedRollout.objects.get(pk=rollout.pk).state == RolloutState.PUBLISHED:
            raise _no_rollout(rollout.instance)
        # In the restoring transaction: a staged revision without a rollout would be in force everywhere.
        _end(rollout, state, reason)
        audit.record(actor, f"rollout.{state}", str(rollout), reason=reason)

    return policies.restore(
        actor,
        rollout.base.number,
        reason=f"Withdrawal of staged revision {rollout.revision.number}: {reason}",
        instance_name=rollout.instance.name,
        expected_revision=rollout.revision.number,
        first=ended,
        guard=guard,
    )


def _end(rollout: StagedRollout, state: RolloutState, reason: str) -> None:
    rollout.state, rollout.why, rollout.ended_at = state, reason[:500], timezone.now()
    rollout.save()


def _running(instance: Instance, expected_revision: int | None) -> StagedRollout:
    """Return the running rollout. Raises OperatorError `no_rollout` or `revision_changed`."""
    rollout = read.running_rollout(instance)
    if rollout is None:
        raise _no_rollout(instance)
    staged = rollout.revision.number
    if expected_revision is not None and expected_revision != staged:
        raise OperatorError(
            "revision_changed",
            f"Revision {staged} is staged, not {expected_revision}.",
            "Check the staged revision first.",
            revision=staged,
        )
    return rollout


def _no_rollout(instance: Instance) -> OperatorError:
    return OperatorError(
        "no_rollout", f"{instance.name} has no running rollout.", "Publish a draft for some clients first."
    )
