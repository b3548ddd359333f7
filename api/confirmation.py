"""Confirmation of policy changes by API: a change with warnings is refused unless the request confirms
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rest_framework.request import Request

from api.document_serializers import to_plain
from broker_core.errors import OperatorError
from console.models import Instance
from console.services import drafts, rollouts
from console.services.actors import access_of_request
from console.services.policies import Guard
from console.services.policy_effects import (
    PolicyChangeEffect,
    effect_of_ending_rollout,
    effect_of_publishing,
)


def guard_publishing(
    request: Request, *, confirmed: bool, rollout: rollouts.RolloutPlan | None = None
) -> Guard | None:
    """Return a guard that refuses a policy document with warnings, or None if the request confirmed them.

    The guard raises OperatorError `confirm_needed`, whose details hold the warnings and the preview.

    Args:
        confirmed: Whether the request has `"confirmed": true`.
        rollout: Plan of a staged rollout: the clients that get the policy first.
    """
    return None if confirmed else _guard(request, effect_of_publishing, rollout)


def guard_ending_rollout(request: Request, *, confirmed: bool) -> Guard | None:
    """Return a guard that refuses to end a rollout if that closes connections or acts on clients.

    None if the request confirmed it. The guard raises OperatorError `confirm_needed`, as that of
    `guard_publishing`.
    """
    return None if confirmed else _guard(request, effect_of_ending_rollout, None)


def _guard(
    request: Request,
    effect_of: Callable[[drafts.DraftPreview, Mapping[str, Any]], PolicyChangeEffect],
    rollout: rollouts.RolloutPlan | None,
) -> Guard:
    """Return a guard that refuses a document if `effect_of` its preview has warnings."""

    def refuse_unconfirmed(instance: Instance, document: Mapping[str, Any]) -> None:
        patterns = access_of_request(request).client_patterns(instance.name)
        preview = drafts.restrict_preview(drafts.preview_document(instance, document, rollout), patterns)
        if warnings := effect_of(preview, document).warnings:
            raise OperatorError(
                "confirm_needed",
                " ".join(["The change wasn't applied.", *(_sentence(one) for one in warnings)]),
                'Read `preview`. To apply the change anyway, send it again with "confirmed": true.',
                warnings=warnings,
                preview=preview_document(preview),
            )

    return refuse_unconfirmed


def _sentence(words: str) -> str:
    return words if words.endswith(".") else f"{words}."


def preview_document(preview: drafts.DraftPreview) -> dict[str, Any]:
    """Return a draft's preview as the API's JSON."""
    return {
        "problems": preview.problems,
        "differences": [one._asdict() for one in preview.differences],
        "findings": [{**one._asdict(), "severity": str(one.severity)} for one in preview.findings],
        "effect": None if preview.effect is None else to_plain(preview.effect),
        "away": preview.away,
    }
