"""Alerts open and close as brokers report; real mail and web servers receive a bounded number of messages."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from msgspec import structs

from broker_core.documents.clients import Health
from console import tasks
from console.choices import AlertSubject, MessageState
from console.models import Alert, AlertMessage, AlertRule, AuditEvent, Decision, Instance
from console.queries import system_conditions
from console.services import alerts
from console.services.actors import Actor
from tests.support.fake_broker import FakeBroker
from tests.support.receiving_servers import Hook, Mailbox, mail_server, web_sink

NOW = datetime(2026, 11, 22, 3, 12, tzinfo=UTC)


@pytest.fixture
def box(settings: Any) -> Iterator[Mailbox]:
    """Run a mail server and make it the console's SMTP server."""
    with mail_server() as made:
        settings.SLUICE_SMTP_URL = f"smtp://127.0.0.1:{made.port}"
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", made.port
        yield made


@pytest.fixture
def hook(settings: Any) -> Iterator[Hook]:
    """Run a web server and allow webhooks to call it."""
    with web_sink() as made:
        settings.SLUICE_WEBHOOK_HOSTS = [f"127.0.0.1:{made.port}"]
        yield made


def rule(
    actor: Actor, instance: Instance, about: AlertSubject = AlertSubject.STALLED, **more: Any
) -> AlertRule:
    return alerts.create(
        actor, AlertRule(instance=instance, name=f"{about}", about=about, **{"for_s": 30, **more})
    )


def health(broker: FakeBroker, health: Health, *names: str) -> None:
    """Set the health of the named clients."""
    broker.clients = [
        structs.replace(one, health=health) if one.name in names else one for one in broker.clients
    ]


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_an_alert_opens_after_its_time_is_told_once_and_told_when_it_is_over(
    actor: Actor, broker: FakeBroker, instance: Instance, box: Mailbox, hook: Hook
) -> None:
    rule(
        actor,
        instance,
        webhook=f"http://127.0.0.1:{hook.port}/x",
        emails="night@example.org, day@example.org",
    )
    for second in (0, 10, 20):
        alerts.evaluate_alerts(after(second))
    assert Alert.objects.get().opened_at is None and not AlertMessage.objects.exists()
    alerts.evaluate_alerts(after(30))
    alerts.evaluate_alerts(after(40))
    assert alerts.send_due_messages(after(40)) == 3
    assert sorted(box.recipients) == [["day@example.org"], ["night@example.org"]]
    assert box.mails[0]["Subject"] == "[Sluice sluice-1] stalled"
    assert "board-jfk is stalled." in box.mails[0].get_content()
    (call,) = hook.calls
    assert (call["state"], call["members"], call["sentence"]) == (
        "open",
        ["board-jfk"],
        "board-jfk is stalled.",
    )
    health(broker, Health.KEEPS_UP, "board-jfk")
    alerts.evaluate_alerts(after(50))
    assert alerts.send_due_messages(after(50)) == 3 and alerts.send_due_messages(after(60)) == 0
    assert [one["state"] for one in hook.calls] == ["open", "over"]
    assert "Resolved: stalled" in str(box.mails[-1]["Subject"])
    assert Alert.objects.get().closed_at == after(50)


def test_what_is_over_before_its_time_was_none(actor: Actor, broker: FakeBroker, instance: Instance) -> None:
    rule(actor, instance)
    alerts.evaluate_alerts(NOW)
    health(broker, Health.KEEPS_UP, "board-jfk")
    alerts.evaluate_alerts(after(20))
    assert not Alert.objects.exists()
    health(broker, Health.STALLED, "board-jfk", "delay-mailer")
    alerts.evaluate_alerts(after(40))
    health(broker, Health.KEEPS_UP, "board-jfk")
    health(broker, Health.STALLED, "carrier-aa")
    alerts.evaluate_alerts(after(60))
    alerts.evaluate_alerts(after(70))
    assert Alert.objects.get().sentence == "delay-mailer is stalled."  # too short for carrier-aa


def test_four_hundred_clients_are_one_alert_with_a_bounded_sentence(
    actor: Actor, broker: FakeBroker, instance: Instance, hook: Hook
) -> None:
    rule(actor, instance, client="many-*", webhook=f"http://127.0.0.1:{hook.port}/")
    broker.clients += [structs.replace(broker.clients[0], name=f"many-{n:03}") for n in range(600)]
    alerts.evaluate_alerts(NOW)
    alerts.evaluate_alerts(after(30))
    assert alerts.send_due_messages(after(30)) == 1
    assert hook.calls[0]["sentence"].startswith("600 clients are stalled: many-000, many-001")
    assert "and 595 more." in hook.calls[0]["sentence"]
    assert len(hook.calls[0]["members"]) == alerts.MAX_MEMBERS


def test_a_broker_that_is_away_changes_no_clients_alert(
    actor: Actor, broker: FakeBroker, instance: Instance
) -> None:
    rule(actor, instance)
    alerts.evaluate_alerts(NOW)
    alerts.evaluate_alerts(after(30))
    broker.answers["snapshot"] = {
        "ok": False,
        "error": {"code": "internal_error", "message": "No.", "fix": ""},
    }
    alerts.evaluate_alerts(after(40))
    assert Alert.objects.get().closed_at is None


def test_a_decision_that_was_carried_out_opens_an_alert_and_a_shadow_one_does_not(
    actor: Actor, broker: FakeBroker, instance: Instance
) -> None:
    rule(actor, instance, AlertSubject.DECISION, client="desk-*")
    facts = {"instance": instance, "action": "disconnect", "reason": "x", "rule": "r", "details": {}}
    Decision.objects.create(at=after(-60), client="desk-1", mode="shadow", **facts)
    Decision.objects.create(at=after(-60), client="board-1", mode="enforce", **facts)
    alerts.evaluate_alerts(NOW)
    assert not Alert.objects.exists()
    Decision.objects.create(at=after(-5), client="desk-7", mode="enforce", **facts)
    alerts.evaluate_alerts(NOW)
    assert Alert.objects.get().sentence == "desk-7 had a policy action."
    alerts.evaluate_alerts(NOW + alerts.DECISION_LASTS)
    assert Alert.objects.get().closed_at is not None


def test_what_stands_at_the_top_can_be_told_and_alerts_stand_there_by_their_rules_name(
    actor: Actor, broker: FakeBroker, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule(actor, instance, AlertSubject.SYSTEM_CONDITION, for_s=0)
    told = system_conditions.SystemCondition("redis", "Redis doesn't answer", "", "", after(-5), severe=True)
    monkeypatch.setattr(alerts.system_conditions, "current_conditions", lambda: [told])
    alerts.evaluate_alerts(NOW)
    monkeypatch.undo()
    assert "Redis doesn't answer" in Alert.objects.get().sentence
    (shown,) = [one for one in system_conditions.current_conditions() if one.key == system_conditions.ALERT]
    assert shown.word == "Alert: standing"
    monkeypatch.setattr(alerts.system_conditions, "current_conditions", lambda: [shown])
    alerts.evaluate_alerts(after(10))
    assert Alert.objects.get().closed_at is not None  # one alert must not trigger another


def test_what_cant_be_sent_is_tried_later_and_given_up_in_the_end(
    actor: Actor, broker: FakeBroker, instance: Instance, box: Mailbox, hook: Hook
) -> None:
    rule(actor, instance, webhook=f"http://127.0.0.1:{hook.port}/", emails="night@example.org", for_s=0)
    box.refusing, hook.status = True, 503
    alerts.evaluate_alerts(NOW)
    assert alerts.send_due_messages(NOW) == 2
    assert alerts.send_due_messages(after(9)) == 0  # the retry is not due
    assert alerts.send_due_messages(after(10)) == 2
    box.refusing = False
    assert alerts.send_due_messages(after(40)) == 2
    mail, call = AlertMessage.objects.order_by("channel")
    assert (mail.state, mail.attempts, len(box.mails)) == (MessageState.SENT, 3, 1)
    assert call.state == MessageState.WAITING and "answered 503" in call.problem
    for hours in range(1, 9):
        alerts.send_due_messages(after(3_600 * hours))
    call.refresh_from_db()
    assert (call.state, call.attempts, len(hook.keys)) == (MessageState.FAILED, 6, 6)
    assert len(set(hook.keys)) == 1  # the receiver can recognise a repeated call


def test_without_a_mail_server_and_with_an_undeclared_host_it_is_said(
    actor: Actor, broker: FakeBroker, instance: Instance, settings: Any
) -> None:
    settings.SLUICE_SMTP_URL = ""
    rule(actor, instance, webhook="http://169.254.169.254/", emails="night@example.org", for_s=0)
    alerts.evaluate_alerts(NOW)
    alerts.send_due_messages(NOW)
    assert {
        one.channel: "SLUICE_SMTP_URL" in one.problem or "isn't a declared host" in one.problem
        for one in AlertMessage.objects.all()
    } == {"email": True, "webhook": True}


def test_a_name_from_outside_adds_no_line_and_no_control_character_to_a_mail(
    actor: Actor, instance: Instance, box: Mailbox
) -> None:
    attack = "board\x1b[2J\u202e\r\nBcc: all@example.org\r\n\r\nforged"
    made = rule(actor, instance, emails="night@example.org", for_s=0)
    AlertRule.objects.filter(pk=made.pk).update(name=f"far behind {attack}")
    opened = Alert.objects.create(
        rule=made, begun_at=NOW, opened_at=NOW, sentence=f"{attack} is stalled.", members={}
    )
    AlertMessage.objects.create(alert=opened, channel="email", target="night@example.org", due_at=NOW)
    assert alerts.send_due_messages(NOW) == 1
    (mail,) = box.mails
    lines = mail.get_content().splitlines()
    assert (mail["Bcc"], len(lines), lines[2]) == (None, 3, "Since 2026-11-22 03:12:00 UTC.")
    for text in (mail["Subject"], *lines):
        assert not {"\x1b", "\u202e", "\r", "\n"} & set(text)


def drip_mail(peer: socket.socket) -> None:
    """Send an SMTP greeting that never ends."""
    while True:
        peer.sendall(b"220-wait\r\n")
        time.sleep(0.05)


def drip_answer(peer: socket.socket) -> None:
    peer.recv(65_536)
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        peer.sendall(b"x")
        time.sleep(0.05)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("channel", "drip"), [("email", drip_mail), ("webhook", drip_answer)])
def test_a_host_that_drips_holds_up_an_alert_for_its_deadline_alone(
    actor: Actor,
    instance: Instance,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    channel: str,
    drip: Callable[[socket.socket], None],
) -> None:
    monkeypatch.setattr(alerts, "EMAIL_DEADLINE_S", 1.0, raising=False)
    monkeypatch.setattr("console.services.webhooks.DEADLINE_S", 1.0, raising=False)
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    with host(drip) as port:
        settings.SLUICE_SMTP_URL = f"smtp://127.0.0.1:{port}"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", port
        settings.SLUICE_WEBHOOK_HOSTS = [f"127.0.0.1:{port}"]
        made = rule(actor, instance, for_s=0)
        opened = Alert.objects.create(
            rule=made, begun_at=NOW, opened_at=NOW, sentence="It is stalled.", members={}
        )
        target = "night@example.org" if channel == "email" else f"http://127.0.0.1:{port}/"
        AlertMessage.objects.create(alert=opened, channel=channel, target=target, due_at=NOW)
        sending = threading.Thread(target=send_in_a_thread, daemon=True)
        sending.start()
        sending.join(30)
        assert not sending.is_alive(), "the slow server must not block other alerts"
    assert AlertMessage.objects.get().problem


@pytest.mark.django_db(transaction=True)
def test_a_slow_mail_server_gets_each_mail_once(
    actor: Actor, instance: Instance, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def send(message: AlertMessage) -> None:
        asked.append(message.pk)
        if len(asked) == 1:  # another sender runs 20 s later, while this mail is being sent
            assert alerts.send_due_messages(after(20)) == 0

    monkeypatch.setattr(alerts, "_send_email", send)
    made = rule(actor, instance, for_s=0)
    opened = Alert.objects.create(rule=made, begun_at=NOW, opened_at=NOW, sentence="It stalls.", members={})
    AlertMessage.objects.create(alert=opened, channel="email", target="night@example.org", due_at=NOW)
    assert alerts.send_due_messages(NOW) == 1
    assert len(asked) == 1
    assert AlertMessage.objects.get().state == MessageState.SENT


def test_a_slow_mail_server_gets_all_mails_of_a_call_behind_those_to_others(
    actor: Actor, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def send(message: AlertMessage) -> None:
        tried.append(message.target)
        if len(tried) == 4:  # a message that becomes due meanwhile does not wait for all mails
            AlertMessage.objects.create(alert=opened, channel="webhook", target=hooks[-1], due_at=NOW)

    monkeypatch.setattr(alerts, "SLOW_S", -1.0)
    monkeypatch.setattr(alerts, "_send_email", send)
    monkeypatch.setattr(alerts, "_call_webhook", send)
    monkeypatch.setattr(
        alerts, "_attempt_all", lambda messages: [alerts._attempt(message) for message in messages]
    )
    made = rule(actor, instance, for_s=0)
    opened = Alert.objects.create(rule=made, begun_at=NOW, opened_at=NOW, sentence="It stalls.", members={})
    mails = [f"{number}@example.org" for number in range(5)]
    hooks = [f"http://127.0.0.{number}/" for number in range(1, 4)]
    for channel, target in [*(("email", one) for one in mails), *(("webhook", one) for one in hooks[:2])]:
        AlertMessage.objects.create(alert=opened, channel=channel, target=target, due_at=NOW)
    assert alerts.send_due_messages(NOW) == 8
    assert tried == [mails[0], *hooks[:2], mails[1], hooks[2], *mails[2:]]


def test_a_slow_host_that_fails_gets_one_message_a_call_and_delays_no_other(
    actor: Actor, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def fails(message: AlertMessage) -> None:
        tried.append(message.target)
        raise OSError("no whole answer")

    monkeypatch.setattr(alerts, "SLOW_S", -1.0)
    monkeypatch.setattr(alerts, "_send_email", fails)
    monkeypatch.setattr(alerts, "_call_webhook", fails)
    made = rule(actor, instance, for_s=0)
    opened = Alert.objects.create(rule=made, begun_at=NOW, opened_at=NOW, sentence="It stalls.", members={})
    mails = [("email", f"{number}@example.org") for number in range(30)]
    for channel, target in [*mails, ("webhook", "http://127.0.0.1:1/a"), ("webhook", "http://127.0.0.1:1/b")]:
        AlertMessage.objects.create(alert=opened, channel=channel, target=target, due_at=NOW)
    assert alerts.send_due_messages(NOW) == 2
    assert sorted(tried) == ["0@example.org", "http://127.0.0.1:1/a"]
    assert alerts.send_due_messages(NOW) == 2
    assert sorted(tried[2:]) == ["1@example.org", "http://127.0.0.1:1/b"]


def test_slow_hosts_delay_no_message_to_another(
    actor: Actor, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each slow host answers only when the other one has its message."""
    told = threading.Event()

    def call(message: AlertMessage) -> None:
        if message.target.endswith("/quick"):
            told.set()
        elif not told.wait(30):
            raise AssertionError("a slow host delayed a message to another")

    monkeypatch.setattr(alerts, "_call_webhook", call)
    made = rule(actor, instance, for_s=0)
    opened = Alert.objects.create(rule=made, begun_at=NOW, opened_at=NOW, sentence="It stalls.", members={})
    targets = [*(f"http://127.0.0.1:{port}/slow" for port in range(1, 13)), "http://127.0.0.1:20/quick"]
    for target in targets:
        AlertMessage.objects.create(alert=opened, channel="webhook", target=target, due_at=NOW)
    assert alerts.send_due_messages(NOW) == len(targets)
    assert set(AlertMessage.objects.values_list("state", flat=True)) == {MessageState.SENT}


def test_one_process_at_a_time_sends(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[datetime] = []

    def send(now: datetime) -> int:
        sent.append(now)
        if len(sent) == 1:
            tasks.send_alerts()
        return 0

    monkeypatch.setattr(alerts, "send_due_messages", send)
    tasks.send_alerts()
    assert len(sent) == 1
    tasks.send_alerts()
    assert len(sent) == 2


def send_in_a_thread() -> None:
    try:
        alerts.send_due_messages(NOW)
    finally:
        connection.close()


@contextmanager
def host(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Run a server on a free port that handles each connection with `answer`; yield the port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(peer: socket.socket) -> None:
        with suppress(OSError), peer:
            answer(peer)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.close()


def test_old_alerts_are_forgotten_and_deleting_a_rule_is_in_the_audit(
    actor: Actor, broker: FakeBroker, instance: Instance
) -> None:
    made = rule(actor, instance, for_s=0)
    alerts.evaluate_alerts(NOW)
    health(broker, Health.KEEPS_UP, "board-jfk")
    alerts.evaluate_alerts(after(10))
    alerts.delete_old_alerts(after(10))
    assert Alert.objects.exists()
    alerts.delete_old_alerts(after(20) + alerts.CLOSED_RETENTION)
    assert not Alert.objects.exists()
    alerts.delete(actor, made, "not used")
    assert AuditEvent.objects.get(action="alert.delete").reason == "not used"
