"""Page of messages: browse topics, follow new messages, publish one as a pending change.

Browsing requires `read_messages` for that topic or pattern. The page starts with a topic that the operator
may read.
"""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from broker_core.bookmark import Bookmark, bookmark_sequence
from broker_core.documents.journals import BrowsedMessage
from broker_core.errors import SluiceError
from broker_core.names import EVENTS_PREFIX
from console import current_instance
from console.choices import PendingChangeKind, Permission
from console.forms.messages import MessagesForm, PublishMessageForm
from console.queries import messages as read
from console.services import audit
from console.services.actors import access_of_request
from console.services.pending_changes import service as pending_service
from console.units.bodies import BodyView, view_body
from console.views import common, pending_changes

PAGE = 50
"""Messages per page."""
MAX_PATTERNS = 8
"""Maximum granted patterns in which topics are searched."""
EVERYTHING = ">"
"""Pattern of all topics."""
BROKER_TOPICS = f"{EVENTS_PREFIX}>"
"""Pattern of the broker's own topics."""


class MessageRow(NamedTuple):
    """Message in the list. `begin`: bookmark of a replay that starts with this message."""

    message: BrowsedMessage
    body: BodyView
    begin: str


@common.requires_permission(Permission.VIEW)
@never_cache
@require_GET
def messages(request: HttpRequest) -> HttpResponse:
    """Show the newest messages of a topic, or those from a position on."""
    readable = _readable(request)
    form = MessagesForm(request.GET)
    found: dict[str, Any] = {}
    status = 200
    if not form.is_valid():
        status = 422
    else:
        topic = form.cleaned_data["topic"] or readable[0]
        common.check_permission(request, Permission.READ_MESSAGES, topic=topic)
        try:
            found = {"topic": topic, "export_url": _export_url(topic, form), **_find_messages(topic, form)}
        except SluiceError as problem:
            found = {"topic": topic, "problem": problem}
    return _show(request, readable, {"form": form, **found}, status=status)


@common.requires_permission(Permission.VIEW)
@never_cache
@require_GET
def follow(request: HttpRequest) -> HttpResponse:
    """Return the messages since `after` as rows.

    The page requests more only once it has shown them.
    """
    form = MessagesForm(request.GET)
    if not form.is_valid() or not form.cleaned_data["topic"]:
        return HttpResponse("Enter a topic.", status=422, content_type="text/plain; charset=utf-8")
    topic = form.cleaned_data["topic"]
    common.check_permission(request, Permission.READ_MESSAGES, topic=topic)
    context: dict[str, Any]
    try:
        come = read.follow_messages(
            topic, filter=form.cleaned_data["filter"], after=request.GET.get("after", "")[:128]
        )
        context = {"rows": _message_rows(come.messages), "come": come}
    except SluiceError as problem:
        context = {"rows": [], "problem": problem}
    return render(request, "components/followed.html", context)


@common.requires_permission(Permission.VIEW)
@require_POST
def publish(request: HttpRequest) -> HttpResponse:
    """Add the publication of a message to the pending changes."""
    audit.mark_read_only(request)
    form = PublishMessageForm(request.POST)
    common.check_permission(request, Permission.PUBLISH, topic=request.POST.get("topic", ""))
    if form.is_valid():
        try:
            pending_service.add_change(
                common.actor_of(request),
                PendingChangeKind.PUBLISH,
                form.cleaned_data["topic"],
                _parameters(form),
            )
            return pending_changes.changes_response(request)
        except SluiceError as problem:
            form.add_error(None, f"{problem.sentence} {problem.fix}".strip())
    if request.headers.get("HX-Request"):
        return pending_changes.render_pending(request, pending_changes.form_errors(form))
    return _show(request, _readable(request), {"form": MessagesForm({})}, form, 422)


def _show(
    request: HttpRequest,
    readable: list[str],
    context: dict[str, Any],
    publishing: PublishMessageForm | None = None,
    status: int = 200,
) -> HttpResponse:
    try:
        topics = read.frequent_topics(readable[:MAX_PATTERNS])
    except SluiceError:
        topics = []  # the error is shown in place of the messages
    chosen = context.get("topic") or readable[0]
    exact = chosen if not set(chosen) & set("*>~") else ""
    context = {
        "topic": chosen,
        "readable": readable,
        "topics": topics,
        "broker_topics": BROKER_TOPICS if EVERYTHING in readable else "",
        "publish_form": publishing or PublishMessageForm(initial={"topic": exact, "format": "json"}),
        "most_followed": read.MAX_FOLLOWED,
        "topics_from": read.TOPICS_FROM,
        **context,
    }
    return common.page(request, "messages.html", context, status)


def _find_messages(topic: str, form: MessagesForm) -> dict[str, Any]:
    """Return the messages that the form selects, as context."""
    query = form.cleaned_data
    if query["start"] or query["end"]:
        page = read.browse_messages(
            topic, filter=query["filter"], bookmark=query["start"] or "0", end=query["end"], limit=PAGE
        )
        later = "" if page.complete else _query(form, start=page.next)
        return {
            "rows": _message_rows(page.messages),
            "searched": page.searched,
            "later": later,
            "forwards": True,
        }
    found = read.newest_messages(topic, filter=query["filter"], before=query["before"], limit=PAGE)
    earlier = _query(form, before=found.earlier) if found.earlier else ""
    return {
        "rows": _message_rows(found.messages),
        "searched": found.searched,
        "earlier": earlier,
        "newest": not query["before"],
    }


def _message_rows(messages: list[BrowsedMessage]) -> list[MessageRow]:
    """Return messages as rows."""
    return [MessageRow(one, view_body(one), _just_before(one.bookmark)) for one in messages]


def _just_before(bookmark: str) -> str:
    """Return the bookmark before a record, given the record's own bookmark, which is a position after it."""
    instance = bookmark.partition("|")[0]
    sequence = bookmark_sequence(bookmark, instance) or 1
    return str(Bookmark(instance, sequence - 1)) if sequence > 1 else "0"


def _query(form: MessagesForm, **change: str) -> str:
    """Return the URL's query with some parameters changed."""
    query = QueryDict(mutable=True)
    parameters = {name: str(form.data.get(name, "")).strip() for name in ("topic", "filter", "end")}
    query.update({name: text for name, text in {**parameters, **change}.items() if text})
    return query.urlencode()


def _export_url(topic: str, form: MessagesForm) -> str:
    """Return the API address that exports the messages of the page as CSV, at most 1,000."""
    query = QueryDict(mutable=True)
    query.update({"format": "csv", "limit": "1000"})
    chosen = {"filter": form.cleaned_data["filter"], "bookmark": form.cleaned_data["start"]}
    query.update({name: text for name, text in chosen.items() if text})
    return f"{reverse('v1:messages', args=[topic])}?{query.urlencode()}"


def _parameters(form: PublishMessageForm) -> dict[str, Any]:
    """Return the parameters of the pending change that publishes a message."""
    if "octets" in form.cleaned_data:
        return {"base64": base64.b64encode(form.cleaned_data["octets"]).decode()}
    return {"data": form.cleaned_data["data"]}


def _readable(request: HttpRequest) -> list[str]:
    """Return the topic patterns that the operator may read; all topics are ">".

    Raises PermissionDenied if there are none.
    """
    patterns = access_of_request(request).topic_patterns(
        current_instance.instance_name(), Permission.READ_MESSAGES
    )
    if patterns == []:
        common.check_permission(request, Permission.READ_MESSAGES)
        raise PermissionDenied
    return [EVERYTHING] if patterns is None else patterns
