"""Page with every component of pages in every state, for developers. Available only with DEBUG."""

from __future__ import annotations

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from broker_core.config.rule_terms import PolicyAction
from broker_core.documents.clients import DeliveryState, Health
from console.choices import Permission
from console.forms.rule_sentence import RuleSentenceForm
from console.views import common

COLOURS = (
    "page",
    "surface",
    "sunken",
    "hover",
    "line",
    "line-control",
    "line-input",
    "ink",
    "ink-2",
    "ink-3",
    "accent",
    "accent-soft",
    "amber",
    "amber-mark",
    "amber-soft",
    "red",
    "red-mark",
    "red-soft",
    "green",
    "green-soft",
    "heat-0",
    "heat-1",
    "heat-2",
    "heat-3",
    "data-1",
    "data-2",
)
"""Names of colours in the style sheet."""
NAMES = ("desk-ldn-04", "risk-eu-overnight-batch-recalculation-0017", "עמדה-7", ".")
"""Client names that are hard to lay out."""
RUNS = ("succeeded", "failed", "waiting", "approval", "running", "cancelled", "lost")
"""States of runs to show."""


@common.requires_permission(Permission.VIEW)
@require_GET
def styleguide(request: HttpRequest) -> HttpResponse:
    """Show the components."""
    if not settings.DEBUG:
        raise Http404
    wrong = RuleSentenceForm({"signal": "oldest_age", "limit": "soon", "action": "warn", "mode": "shadow"})
    wrong.is_valid()
    context = {
        "colours": COLOURS,
        "healths": list(Health),
        "deliveries": list(DeliveryState),
        "acts": [action.value for action in PolicyAction],
        "names": NAMES,
        "runs": RUNS,
        "form": RuleSentenceForm(),
        "wrong": wrong,
    }
    return common.page(request, "styleguide.html", context)
