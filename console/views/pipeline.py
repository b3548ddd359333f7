"""What the pipeline's jobs found: the kept runs, and each with its tables and plots, to look at, share and take away."""

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
from console.views.decisions import query_of
from console.views.drafts import get_draft
from console.views.runs import runs_panel

PAGE = 50
BACKTEST_OPTIONS = ("grid", "save", "start", "end")
USUALLY = timedelta(days=1)
"""So much of the newest traffic a back-test tries unless it is asked for more: all that a log holds may take many times as long."""


@common.requires_permission(Permission.VIEW)
@require_GET
def run_list(request: HttpRequest) -> HttpResponse:
    """The newest runs, whoever started them, and the jobs there are."""
    job = request.GET.get("job", "").strip()[:64]
    found = Paginator(read.stored_runs(job), PAGE).get_page(request.GET.get("page"))
    jobs = PipelineJobs().names()
    told = {
        "page": found,
        "jobs": jobs,
        "job": job,
        "known": job in jobs,
        "options": JOB_OPTIONS.get(job),
        "query": query_of({"job": job}),
    }
    return common.page(request, "pipeline.html", told)


@common.requires_permission(Permission.RUN_ACTIONS)
@require_POST
def start(request: HttpRequest) -> HttpResponse:
    """Ask for a job with its options."""
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
        return redirect(f"{reverse('pipeline')}?{query_of({'job': job[:64]})}")
    messages.success(
        request, "The pipeline job is asked for. What it finds is among the pipeline's runs when it is done."
    )
    return redirect("runs")


@common.requires_permission(Permission.RUN_ACTIONS)
@require_http_methods(["GET", "HEAD", "POST"])
def backtest(request: HttpRequest, draft_id: int) -> HttpResponse:
    """Try a draft on the recorded traffic: what to try, and what came of it before. Who is refused keeps what he asked for."""
    try:
        draft = get_draft(draft_id)
    except SluiceError as problem:
        common.show_error(request, problem)
        return redirect("drafts")
    asked = {"start": f"{datetime.now(UTC) - USUALLY:%Y-%m-%dT%H:%M:00Z}"}
    if request.method == "POST":
        asked = {name: request.POST.get(name, "").strip().replace(" ", "")[:500] for name in BACKTEST_OPTIONS}
        try:
            service.backtest(common.actor_of(request), draft, asked)
        except SluiceError as problem:
            common.show_error(request, problem)
        else:
            messages.success(
                request, "The back-test is asked for. What it finds is listed here when it is done."
            )
            return redirect("drafts_backtest", draft_id)
    return common.page(request, "backtest.html", {"asked": asked} | _tries(request, draft))


@common.requires_permission(Permission.RUN_ACTIONS)
@require_GET
def backtest_runs(request: HttpRequest, draft_id: int) -> HttpResponse:
    """What was asked for of a draft, and what came of it, alone; its page asks for it every two seconds while something runs."""
    try:
        draft = get_draft(draft_id)
    except SluiceError as problem:
        raise Http404 from problem
    return render(
        request,
        "components/backtests.html",
        {"may": common.allowed_permissions(request)} | _tries(request, draft),
    )


def _tries(request: HttpRequest, draft: PolicyDraft) -> dict[str, Any]:
    mine = f"draft-{draft.pk}-"
    found = [
        run
        for run in read.stored_runs("backtest")
        if str(run["parameters"].get("policy", "")).startswith(mine)
    ]
    asked_for = runs.backtests(draft.instance, draft.pk)
    listed = runs_panel(request, asked_for)
    return listed | {"draft": draft, "runs": found[:PAGE]}


@common.requires_permission(Permission.VIEW)
@require_GET
def run_page(request: HttpRequest, run_id: str) -> HttpResponse:
    """One run with its tables and plots."""
    run = _allowed(request, run_id)
    return common.page(request, "pipeline_run.html", {"run": run, "tables": read.run_tables(run)})


@common.requires_permission(Permission.VIEW)
@require_GET
def download_table(
    request: HttpRequest, run_id: str, table: str, form: str
) -> HttpResponse | StreamingHttpResponse:
    """A table as CSV or Parquet."""
    run = _allowed(request, run_id, table)
    path = read.table_path(run, table)
    if path is None or form not in ("csv", "parquet"):
        raise Http404("There is no such table.")
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
    """A plot as an image, in which nothing runs."""
    drawn = read.run_plot(_allowed(request, run_id, name), name)
    if drawn is None:
        raise Http404("There is no such plot.")
    return HttpResponse(drawn, content_type="image/svg+xml")


@common.requires_permission(Permission.VIEW)
@require_GET
def document(request: HttpRequest, run_id: str) -> HttpResponse:
    """What a run wrote for people, to take away: a file, so that the console's own pages never show another's."""
    found = read.run_document(_allowed(request, run_id))
    if found is None:
        raise Http404("There is no such document.")
    answer = HttpResponse(found, content_type="text/html; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{run_id}.html"'
    return answer


def _allowed(request: HttpRequest, run_id: str, table: str = "") -> dict[str, Any]:
    """The run, to who may see all clients and, where bodies of messages are in it, read messages."""
    if common.visible_patterns(request) is not None:
        raise PermissionDenied("A run is about all clients. Ask for a grant that isn't limited to some.")
    run = read.stored_run(run_id)
    if run is None:
        raise Http404("There is no such run.")
    if read.contains_messages(run, table.partition(".")[0]):
        common.check_permission(request, Permission.READ_MESSAGES, instance=run["instance"])
    return run
