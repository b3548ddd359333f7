"""Export of audit events to a log host and a webhook, received by a real socket and a real HTTP server."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import kombu.transport.redis
import pytest
from celery.exceptions import Retry
from django.test import Client

from console.models import AuditChainLink, AuditEvent
from console.project.celery import app
from console.services import audit, audit_export
from console.services.actors import Actor
from console.tasks import export_audit
from tests.support.control_plane import PASSWORD

RFC5424 = re.compile(rb"<(\d+)>1 \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z (\S+) sluice (\d+) (\S+) - (\{.*\})")


@pytest.fixture
def hook() -> Iterator[Any]:
    """Run an HTTP server that answers with `statuses` in order, repeating the last one, and records requests
    in `asked`.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server: Any = self.server
            server.asked.append(
                (dict(self.headers), json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            )
            self.send_response(server.statuses.pop(0) if len(server.statuses) > 1 else server.statuses[0])
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server: Any = HTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.statuses = [], [204]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run tasks, retries included, immediately when they are sent."""
    monkeypatch.setattr(
        audit_export.current_app, "send_task", lambda name, args, **more: app.tasks[name].apply(args)
    )


def test_a_login_reaches_the_log_host(
    operator: Any, settings: Any, at_once: None, django_capture_on_commit_callbacks: Any
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind(("127.0.0.1", 0))
        sink.settimeout(20)
        settings.SLUICE_AUDIT_SYSLOG = f"udp://127.0.0.1:{sink.getsockname()[1]}"
        with django_capture_on_commit_callbacks(execute=True):
            Client().post("/login/", {"username": "maria", "password": PASSWORD})
            Client().post("/login/", {"username": "maria", "password": "wrong"})
        lines = [sink.recv(65_536) for _ in range(2)]
    told = []
    for line, priority in zip(lines, (b"109", b"108"), strict=True):
        found = RFC5424.fullmatch(line)
        assert found is not None, line
        assert (found[1], found[4]) == (priority, b"login")
        told.append(json.loads(found[5]))
    assert [(one["actor"], one["result"]) for one in told] == [("maria", "done"), ("maria", "denied")]
    assert told[1]["former"] == told[0]["digest"]
    assert {one["digest"] for one in told} <= set(AuditChainLink.objects.values_list("digest", flat=True))


def test_over_tcp_each_is_counted(db: None, actor: Actor, settings: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sink:
        settings.SLUICE_AUDIT_SYSLOG = f"tcp://127.0.0.1:{sink.getsockname()[1]}"
        audit_export.export_event(audit.record(actor, "policy.change", "x", after={"long": "y" * 20_000}).pk)
        connection, _ = sink.accept()
        with connection, connection.makefile("rb") as stream:
            received = stream.read()
    count, _, line = received.partition(b" ")
    assert int(count) == len(line) <= audit_export.MAX_BYTES
    found = RFC5424.fullmatch(line)
    assert found is not None
    assert json.loads(found[5])["cut"] is True


def test_a_webhook_that_fails_is_asked_again(
    db: None, actor: Actor, settings: Any, hook: Any, at_once: None, django_capture_on_commit_callbacks: Any
) -> None:
    settings.SLUICE_AUDIT_WEBHOOK = f"http://127.0.0.1:{hook.server_port}/audit"
    hook.statuses = [500, 503, 204]
    with django_capture_on_commit_callbacks(execute=True):
        event = audit.record(actor, "policy.change", "try")
    assert [told["id"] for _, told in hook.asked] == [event.pk] * 3
    assert len({headers["Idempotency-Key"] for headers, _ in hook.asked}) == 1


def test_tries_are_bounded_and_the_event_stays(
    db: None,
    actor: Actor,
    settings: Any,
    hook: Any,
    at_once: None,
    caplog: Any,
    django_capture_on_commit_callbacks: Any,
) -> None:
    settings.SLUICE_AUDIT_WEBHOOK = f"http://127.0.0.1:{hook.server_port}/audit"
    hook.statuses = [500]
    with django_capture_on_commit_callbacks(execute=True):
        event = audit.record(actor, "policy.change", "try")
    assert len(hook.asked) == audit_export.MAX_TRIES
    assert f"audit event {event.pk} isn't sent" in caplog.text
    assert AuditEvent.objects.filter(pk=event.pk).exists()


def test_waits_double(db: None, actor: Actor, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SLUICE_AUDIT_WEBHOOK = "http://127.0.0.1:9/nobody"
    event, waits = audit.record(actor, "policy.change", "try"), []
    monkeypatch.setattr(
        export_audit,
        "retry",
        lambda exc, countdown: waits.append(countdown) or Retry("again", exc, countdown),
    )
    for tries in range(audit_export.MAX_TRIES - 1):
        export_audit.push_request(retries=tries)
        with pytest.raises(Retry):
            export_audit.run(event.pk)
        export_audit.pop_request()
    assert waits == [5, 10, 20, 40, 80]


def test_what_is_taken_back_isn_t_sent(
    db: None, actor: Actor, settings: Any, hook: Any, at_once: None
) -> None:
    settings.SLUICE_AUDIT_WEBHOOK = f"http://127.0.0.1:{hook.server_port}/audit"
    audit.record(actor, "policy.change", "within a test's transaction, which is taken back")
    assert hook.asked == []


def test_the_events_of_a_killed_worker_are_delivered_again_within_five_minutes(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_interval_s = 100
    killed, successor = app.connection_for_read(), app.connection_for_read()
    with killed, successor:
        waiting = killed.SimpleQueue("events-of-a-killed-worker")
        waiting.put("event")
        assert waiting.get(timeout=10).payload == "event"
        waiting.channel.do_restore = False  # a killed process gives nothing back
        later = time.time() + 300 - check_interval_s
        monkeypatch.setattr(kombu.transport.redis, "time", lambda: later)
        found = successor.SimpleQueue("events-of-a-killed-worker")
        found.channel.qos.restore_visible(num=None)
        message = found.get(timeout=10)
        assert message.payload == "event"
        message.ack()


def test_a_waiting_retry_is_not_taken_for_the_event_of_a_killed_worker(settings: Any) -> None:
    longest_wait_s = audit_export.FIRST_WAIT_S * 2 ** (audit_export.MAX_TRIES - 2)
    visible_s = settings.CELERY_BROKER_TRANSPORT_OPTIONS["visibility_timeout"]
    assert longest_wait_s + 2 * audit_export.DEADLINE_S < visible_s
