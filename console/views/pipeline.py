"""Pages of the pipeline: stored runs with their tables and plots, downloads, and back-tests of drafts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from broker_core.documents.jobs import JOB_OPTIONS
from broker_core.errors import SluiceError
from console.choices import Permission, PipelineJobs
from console.models import PolicyDraft
from console.queries import pipeline_runs as read
from console.queries import runs
from console.services import pipeline as service
from console.services.pipeline import parse_options
from console.views import common
from console.views.decisions import filter_query
from console.views.drafts import get_draft
from console.views.runs import runs_panel

PAGE = 50
"""Runs per page."""
BACKTEST_OPTIONS = ("grid", "save", "start", "end")
"""Options of a back-test in the form."""
USUALLY = timedelta(days=1)
"""Default traffic of a back-test: the newest.

The whole log may take many times as long.
"""


@common.requires_permission(Permission.VIEW)
@require_GET
def run_list(request: HttpRequest) -> HttpResponse:
    """Show the newest runs on the page's instance, of all accounts, and the available jobs."""
    job = request.GET.get("job", "").strip()[:64]
    found = Paginator(read.stored_runs(job), PAGE).get_page(request.GET.get("page"))
    jobs = PipelineJobs().names()
    context = {
        "page": found,
        "jobs": jobs,
        "job": job,
        "known": job in jobs,
        "options": JOB_OPTIONS.get(job),
        "query": filter_query({"job": job}),
    }
    return common.page(request, "pipeline.html", context)


@common.requires_permission(Permission.RUN_ACTIONS)
@require_POST
def start(request: HttpRequest) -> HttpResponse:
    """Request a pipeline job with options."""
    job = request.POST.get("job", "")
    fields = {
        one.name: request.POST.get(f"option-{one.name}", "").strip() for one in JOB_OPTIONS.get(job, ())
    }
    try:
        options = parse_options(request.POST.get("options", "")[:4_000])
        options |= {name: value for name, value in fields.items() if value}
        service.request(common.actor_of(request), job, options)
    except SluiceError as problem:
        common.show_error(request, problem)
        return redirect(f"{reverse('pipeline')}?{filter_query({'job': job[:64]})}")
    messages.success(
        request,
        "The pipeline job is requested. Its result appears among the pipeline's runs when it has finished.",
    )
    return redirect("runs")


@common.requires_permission(Permission.RUN_ACTIONS)
@require_http_methods(["GET", "HEAD", "POST"])
def backtest(request: HttpRequest, draft_id: int) -> HttpResponse:
    """Show or request back-tests of a draft on recorded traffic.

    If the request is refused, the form keeps the typed options.
    """
    try:
        draft = get_draft(draft_id)
    except SluiceError as problem:
        common.show_error(request, problem)
        return redirect("drafts")
    options = {"start": f"{datetime.now(UTC) - USUALLY:%Y-%m-%dT%H:%M:00Z}"}
    if request.method == "POST":
        options = {
            name: request.POST.get(name, "").strip().replace(" ", "")[:500] for name in BACKTEST_OPTIONS
        }
        try:
            service.backtest(common.actor_of(request), draft, options)
        except SluiceError as problem:
            common.show_error(request, problem)
        else:
            messages.success(
                request, "The back-test is requested. Its result is listed here when it has finished."
            )
            return redirect("drafts_backtest", draft_id)
    return common.page(request, "backtest.html", {"options": options} | _backtests_context(request, draft))


@common.requires_permission(Permission.RUN_ACTIONS)
@require_GET
def backtest_runs(request: HttpRequest, draft_id: int) -> HttpResponse:
    """Show the back-tests of a draft without the page around them.

    The page requests this every two seconds while a run is active.
    """
    try:
        draft = get_draft(draft_id)
    except SluiceError as problem:
        raise Http404 from problem
    return render(
        request,
        "components/backtests.html",
        {"may": common.allowed_permissions(request)} | _backtests_context(request, draft),
    )


def _backtests_context(request: HttpRequest, draft: PolicyDraft) -> dict[str, Any]:
    """Return the back-tests of a draft as context."""
    prefix = f"draft-{draft.pk}-"
    found = [
        run
        for run in read.stored_runs("backtest")
        if str(run["parameters"].get("policy", "")).startswith(prefix)
    ]
    requested = runs.backtests(draft.instance, draft.pk)
    listed = runs_panel(request, requested)
    return listed | {"draft": draft, "runs": found[:PAGE]}


@common.requires_permission(Permission.VIEW)
@require_GET
def run_page(request: HttpRequest, run_id: str) -> HttpResponse:
    """Show a run with its tables and plots."""
    run = _get_run(request, run_id)
    return common.page(request, "pipeline_run.html", {"run": run, "tables": read.run_tables(run)})


@common.requires_permission(Permission.VIEW)
@require_GET
def download_table(
    request: HttpRequest, run_id: str, table: str, form: str
) -> HttpResponse | StreamingHttpResponse:
    """Return a table as a CSV or Parquet file."""
    run = _get_run(request, run_id, table)
    path = read.table_path(run, table)
    if path is None or form not in ("csv", "parquet"):
        raise Http404("The table doesn't exist.")
    name = f"{run_id}.{table}.{form}"
    if form == "parquet":
        return FileResponse(
            path.open("rb"), as_attachment=True, filename=name, content_type="application/vnd.apache.parquet"
        )
    answer = StreamingHttpResponse(read.table_as_csv(path), content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer


@common.requires_permission(Permission.VIEW)
@require_GET
def plot(request: HttpRequest, run_id: str, name: str) -> HttpResponse:
    """Return a plot as an SVG image, in which no script runs."""
    drawn = read.run_plot(_get_run(request, run_id, name), name)
    if drawn is None:
        raise Http404("The plot doesn't exist.")
    return HttpResponse(drawn, content_type="image/svg+xml")


@common.requires_permission(Permission.VIEW)
@require_GET
def document(request: HttpRequest, run_id: str) -> HttpResponse:
    """Return a run's HTML document as a download, so that it is never shown as a page of the console."""
    found = read.run_document(_get_run(request, run_id))
    if found is None:
        raise Http404("The document doesn't exist.")
    answer = HttpResponse(found, content_type="text/html; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{run_id}.html"'
    return answer


def _get_run(request: HttpRequest, run_id: str, table: str = "") -> dict[str, Any]:
    """Return the run if the caller may see it. Raises PermissionDenied or Http404.

    The caller must be allowed to see all clients and, if the run contains message bodies, to read messages.
    """
    if common.visible_patterns(request) is not None:
        raise PermissionDenied("A run covers all clients. Request a role that isn't limited to some clients.")
    run = read.stored_run(run_id)
    if run is None:
        raise Http404("The run doesn't exist.")
    if read.contains_messages(run, table.partition(".")[0]):
        common.check_permission(request, Permission.READ_MESSAGES)
    return run
