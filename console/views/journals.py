"""Page of journals: a map of the log, its holders, and retention. Journal actions are pending changes."""

from __future__ import annotations

from urllib.parse import urlencode

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from broker_core.documents.journals import SegmentEntry
from broker_core.errors import SluiceError
from console import current_instance
from console.broker_link import is_on_this_machine, members_of
from console.choices import PendingChangeKind, Permission
from console.forms.journals import JournalActionForm
from console.queries import journal_map, live, overview, runs
from console.queries.run_redaction import redact_segments
from console.services import audit
from console.services.actors import access_of_request
from console.services.pending_changes import service as pending_service
from console.units.format import seconds
from console.views import common, pending_changes

ACTIONS = (
    ("archive", "Archive", "Moves segments to the archive directory; they remain part of the log"),
    ("compress", "Compress", "Compresses segments with gzip in place; they remain readable and replayable"),
    ("remove", "Remove", "Deletes segments; their records can no longer be replayed"),
)
"""Journal actions: name, label, effect."""
PAGE = 100
"""Segments per page."""
MAX_REMOVALS = 50
"""Maximum removals on the map."""
RANGES = (("24h", "24 h"), ("7d", "7 d"), ("30d", "30 d"), ("90d", "90 d"), ("all", "All"))
"""Selectable time ranges: key and label."""


@common.requires_permission(Permission.VIEW)
@require_GET
def journals(request: HttpRequest) -> HttpResponse:
    """Show the map, the segments and the form."""
    return _show(request, JournalActionForm())


@common.requires_permission(Permission.RUN_ACTIONS)
@require_POST
def plan(request: HttpRequest) -> HttpResponse:
    """Add a journal action to the pending changes, which show its effect. Changes nothing yet."""
    audit.mark_read_only(request)
    form = JournalActionForm(request.POST)
    if not form.is_valid():
        return _show(request, form, 422)
    try:
        kind = PendingChangeKind(form.cleaned_data["action"])
        parameters: dict[str, object] = {"age": form.cleaned_data["age"]}
        if (
            form.cleaned_data["in_lake"] and kind == PendingChangeKind.REMOVE
        ):  # only `remove` deletes records from the log
            parameters["in_lake"] = True
        if member := form.cleaned_data["member"]:
            parameters["member"] = member
        pending_service.add_change(common.actor_of(request), kind, "", parameters)
    except SluiceError as problem:
        common.show_error(request, problem)
    return pending_changes.changes_response(request)


def _show(
    request: HttpRequest,
    form: JournalActionForm,
    status: int = 200,
) -> HttpResponse:
    segments: list[SegmentEntry] = []
    members, away = members_of(current_instance.instance_name()), None
    member = str(form.data.get("member") or request.GET.get("member") or members[0])
    try:
        visible = redact_segments(
            live.journal_segments(member=member), current_instance.instance_name(), access_of_request(request)
        )
        segments = sorted(visible, key=lambda one: one.first_sequence, reverse=True)
    except SluiceError as problem:
        away = problem
    now, instance = timezone.now(), common.local_instance()
    chosen = request.GET.get("range", "all")
    disk = (
        overview.disk_forecast(segments[::-1], now)
        if is_on_this_machine(current_instance.instance_name(), member)
        else None
    )
    removals = list(runs.removals(instance)[:MAX_REMOVALS]) if instance is not None else []
    log = journal_map.journal_map(segments, removals, chosen, now)
    context = {
        "page": Paginator(segments, PAGE).get_page(request.GET.get("page")),
        "query": _query(request),
        "segments": segments,
        "full_in": _full_in(disk),
        "broker_problem": away,
        "actions": ACTIONS,
        "plan_form": form,
        "disk": disk,
        "map": log,
        "pinned_bytes": _pinned_bytes(segments),
        "keeping": journal_map.retention_options(segments, disk, now),
        "range": chosen if chosen in journal_map.RANGES else "all",
        "ranges": RANGES,
        "total_bytes": sum(segment.bytes for segment in segments),
        "members": members,
        "member": member,
        "total_records": sum(segment.records for segment in segments),
    }
    return common.page(request, "journals.html", context, status)


def _query(request: HttpRequest) -> str:
    """Return the member and range as the beginning of a query string, for the pager's links."""
    parameters = {key: request.GET[key] for key in ("member", "range") if key in request.GET}
    return f"{urlencode(parameters)}&" if parameters else ""


def _full_in(disk: overview.DiskForecast | None) -> str:
    """Return the time until the disk is full as text, or "" if unknown."""
    full_in_s = disk.full_in_s if disk is not None else None
    if full_in_s is None:
        return ""
    return f"{full_in_s / 86_400:,.0f} days" if full_in_s >= 2 * 86_400 else seconds(full_in_s)


def _pinned_bytes(segments: list[SegmentEntry]) -> int:
    """Return the bytes of sealed segments that holders need."""
    return sum(one.bytes for one in segments if one.pinned_by and one.state != "current")
