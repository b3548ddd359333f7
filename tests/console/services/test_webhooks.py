"""Outgoing calls end at their deadline or on cancellation, whatever the remote host does."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.mail import EmailMessage
from django.utils import timezone

from broker_core.errors import OperatorError
from console.choices import RunState
from console.models import ActionRun, Instance
from console.services import audit_export, bounded_call, bounded_mail, execution, runs, webhooks
from console.services.actions import editor, event_runs
from console.services.actions.webhook_address import check_address
from console.services.actors import SYSTEM
from console.services.run_progress import RunCancelled

LONG_S = 60.0
"""Far more than a deadline here; a call that takes it has none."""


def drip_headers(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        peer.sendall(b"X: 1\r\n")
        time.sleep(0.05)


def drip_body(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        peer.sendall(b"x")
        time.sleep(0.05)


def drip_continue(peer: socket.socket) -> None:
    while True:
        peer.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.05)


def say_nothing(peer: socket.socket) -> None:
    time.sleep(LONG_S)


def flood(peer: socket.socket) -> None:
    """Send an endless response as fast as possible."""
    peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        peer.sendall(b"x" * 65_536)


WAYS = [drip_headers, drip_body, drip_continue, say_nothing]


@contextlib.contextmanager
def host(answer: Callable[[socket.socket], None], *, listens: bool = True) -> Iterator[int]:
    """Run a server that handles each connection with `answer`, after reading a request if `listens`; yield
    its port.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                threading.Thread(target=talk, args=(peer,), daemon=True).start()

    def talk(peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer:
            if listens:
                peer.recv(65_536)
            answer(peer)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.close()


def call(port: int, scheme: str = "http", **more: Any) -> webhooks.WebhookResponse:
    return webhooks.post_webhook(
        urlsplit(f"{scheme}://127.0.0.1:{port}/"), b"{}", "application/json", "once", **more
    )


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "DEADLINE_S", 1.0)
    monkeypatch.setattr(audit_export, "DEADLINE_S", 1.0)
    monkeypatch.setattr(bounded_call, "MAX_ABANDONED", 1_000)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("way", WAYS)
def test_a_call_ends_by_its_deadline_whatever_the_host_does(
    way: Callable[[socket.socket], None], scheme: str
) -> None:
    with host(way) as port:
        began = time.monotonic()
        with pytest.raises(OperatorError) as failed:
            call(port, scheme)
        assert failed.value.code == "webhook_failed"
        assert time.monotonic() - began < LONG_S / 2


def test_an_endless_answer_is_read_up_to_its_bound() -> None:
    with host(flood) as port:
        assert len(call(port).text) == webhooks.MAX_ANSWER


def test_what_is_given_up_ends_too() -> None:
    with host(drip_body) as port, pytest.raises(OperatorError):
        call(port)
    deadline = time.monotonic() + LONG_S
    while any(thread.is_alive() for thread in bounded_call._abandoned):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def drip_greeting(peer: socket.socket) -> None:
    """Send an endless SMTP greeting, with each line inside any read timeout."""
    while True:
        peer.sendall(b"220-wait\r\n")
        time.sleep(0.05)


@pytest.mark.parametrize("over_tls", [False, True])
def test_a_mail_server_that_drips_leaves_no_thread_behind(over_tls: bool, settings: Any) -> None:
    """Sixteen blocked threads would stop all outgoing calls of this worker permanently."""
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_USE_SSL = over_tls
    message = EmailMessage("subject", "text", "sluice@localhost", ["maria@localhost"])
    with host(drip_greeting, listens=False) as port:
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", port
        with pytest.raises(OSError):
            bounded_call.call_within(1.0, lambda sockets: bounded_mail.send(sockets, message))
        deadline = time.monotonic() + LONG_S / 4
        while any(thread.is_alive() for thread in bounded_call._abandoned):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_call_ends_when_its_run_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "DEADLINE_S", LONG_S)
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() - began > 0.5:
            raise RunCancelled

    with host(drip_body) as port, pytest.raises(RunCancelled):
        call(port, check=check)
    assert time.monotonic() - began < LONG_S / 2


def test_so_many_calls_that_hang_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_call, "MAX_ABANDONED", 1)
    monkeypatch.setattr(bounded_call, "_abandoned", set())  # without threads of earlier tests that still end
    ends = threading.Event()
    with pytest.raises(TimeoutError):
        bounded_call.call_within(0.2, lambda _: ends.wait(LONG_S))
    with pytest.raises(OperatorError) as refused:
        bounded_call.call_within(0.2, lambda _: None)
    assert refused.value.code == "call_refused"
    ends.set()
    while any(thread.is_alive() for thread in bounded_call._abandoned):
        time.sleep(0.05)
    assert bounded_call.call_within(5, lambda _: 7) == 7


def test_hung_look_ups_of_a_name_refuse_no_call_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name servers that don't answer hang a look-up for longer than a call may last."""
    ends, started, look_up = threading.Event(), list[str](), socket.getaddrinfo

    def hang(host: str, *arguments: Any, **options: Any) -> Any:
        if not host.endswith(".hung") or options.get("flags"):
            return look_up(host, *arguments, **options)
        started.append(host)
        ends.wait(LONG_S)
        raise socket.gaierror("no name server answers")

    def is_refused(host: str) -> bool:
        try:
            bounded_call.call_within(0.2, lambda sockets: sockets.connect(host, 80))
        except OperatorError as problem:
            return problem.code == "call_refused"
        except TimeoutError:
            return False
        raise AssertionError("it connected")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(bounded_call, "MAX_ABANDONED", 4)
    monkeypatch.setattr(bounded_call, "MAX_LOOKUPS", 2)
    monkeypatch.setattr(bounded_call, "_abandoned", set())
    monkeypatch.setattr(bounded_call, "_lookups", {})
    try:
        assert not any(is_refused("one.hung") for _ in range(8))
        assert started == ["one.hung"], "calls to one name share a look-up"
        assert not is_refused("two.hung")
        assert is_refused("three.hung"), "threads are bounded"
        with host(flood) as port:
            assert call(port).status == 200
    finally:
        ends.set()
    deadline = time.monotonic() + LONG_S
    with pytest.raises(socket.gaierror):
        while is_refused("three.hung"):  # until the hung threads have ended
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.django_db(transaction=True)
def test_cancelling_a_run_ends_its_call(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "DEADLINE_S", LONG_S)
    instance = Instance.objects.create(name="one")
    with host(drip_body) as port:
        settings.SLUICE_WEBHOOK_HOSTS = [f"127.0.0.1:{port}"]
        action = editor.Action.objects.create(
            instance=instance,
            name="call",
            started_at=timezone.now(),
            steps=[{"do": "webhook", "url": f"http://127.0.0.1:{port}/", "data": ""}],
        )
        run = event_runs.start_run(SYSTEM, action, {"on": "hand"}, {}, timezone.now())
        ActionRun.objects.filter(pk=run.pk).update(state=RunState.WAITING, error=None)
        # Request the cancellation from another thread: the waiting run checks only its row.
        asked = threading.Timer(
            1.0, lambda: ActionRun.objects.filter(pk=run.pk).update(cancel_requested=True)
        )
        asked.start()
        began = time.monotonic()
        done = execution.execute_run(run.pk)
        assert done is not None and done.state == RunState.CANCELLED
        assert time.monotonic() - began < LONG_S / 2
        assert not runs.ActionRun.objects.filter(state=RunState.RUNNING).exists()


def test_the_audit_s_export_has_a_deadline_and_follows_no_redirect(db: None) -> None:
    with host(drip_headers) as port, pytest.raises(OperatorError):
        audit_export._to_webhook(f"http://127.0.0.1:{port}/", {"digest": "d"})

    def redirect(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")

    with host(redirect) as port, pytest.raises(OperatorError) as failed:
        audit_export._to_webhook(f"http://127.0.0.1:{port}/", {"digest": "d"})
    assert failed.value.details["status"] == 302


@pytest.mark.parametrize(
    ("declared", "url", "taken"),
    [
        ("[::1]:8080", "http://[::1]:8080/x", True),
        ("[::1]", "https://[::1]/x", True),
        ("[::1]", "https://[::1]:8443/x", False),
        ("[::1]:443", "https://[::1]/x", True),
        ("[::1]:8080", "http://[::1]:8081/x", False),
        ("::1:8080", "http://[::1:8080]/x", False),
    ],
)
def test_an_address_in_brackets_is_declared_as_it_is_written(
    settings: Any, declared: str, url: str, taken: bool
) -> None:
    settings.SLUICE_WEBHOOK_HOSTS = [declared]
    if taken:
        assert check_address(url).hostname == "::1"
    else:
        with pytest.raises(OperatorError, match=r"\[::1"):
            check_address(url)
