"""Alerts by rules over clients' health, over decisions, and over the system conditions on every page.

`evaluate_alerts` opens and closes alerts every ten seconds. A rule has one open alert however many clients
it matches, so that 400 stalled clients cause one message. `send_due_messages` sends messages, each at most
`MAX_ATTEMPTS` times. A sender postpones the next attempt beyond the deadline of its own before it sends. So a
message is retried after a crash, and two processes never send the same one. One process sends at a time
(`tasks.send_alerts`).
"""

from __future__ import annotations

import json
import smtplib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import F, QuerySet

from broker_core.config.rule_terms import EnforcementMode
from broker_core.documents.clients import ClientEntry, Health
from broker_core.errors import OperatorError, SluiceError
from broker_core.names import name_matches
from broker_core.safe_text import escape_line, to_mail_header
from console.broker_link import collect_unreachable
from console.choices import AlertSubject, MessageState
from console.models import Alert, AlertMessage, AlertRule, Decision, Instance
from console.queries import live, system_conditions
from console.services import audit, bounded_mail, webhooks
from console.services.actions.webhook_address import check_address
from console.services.actors import Actor
from console.services.bounded_call import call_within

MAX_RULES: Final = 50
MAX_MEMBERS: Final = 500
"""Maximum members (clients or conditions) of an alert that are stored by name."""
MAX_NAMED: Final = 5
MAX_ATTEMPTS: Final = 6
FIRST_PAUSE: Final = timedelta(seconds=10)
"""Pause before the second attempt.

Each further pause is three times as long: 10 s, 30 s, and so on to 13 min.
"""
MAX_AT_ONCE: Final = 20
"""Maximum messages that one `send_due_messages` call tries, and maximum hosts that it calls at a time."""
MAX_DUE: Final = 500
"""Maximum due messages that one call considers."""
SLOW_S: Final = 5.0
"""Duration of an attempt in seconds from which its host counts as slow."""
SENDING_S: Final = 30.0
"""Time budget of one `send_due_messages` call, in seconds."""
EMAIL_DEADLINE_S: Final = 30.0
"""Deadline for one e-mail in seconds, from the look-up of the mail server to its last reply."""
DECISION_LASTS: Final = timedelta(minutes=10)
"""How long after a decision an alert about it stays open."""
LIMIT_TIMEOUT_MS: Final = 300_000
"""Forecast horizon of alerts about limits: a limit reached within this time counts."""
CLOSED_RETENTION: Final = timedelta(days=30)
"""How long closed alerts are retained."""
EMAIL, WEBHOOK = "email", "webhook"
_ATTENTION_STATES = (Health.STALLED, Health.FLAPPING, Health.FALLING_BEHIND)
_FITS: Mapping[str, Callable[[ClientEntry], bool]] = {
    AlertSubject.STALLED: lambda one: one.health is Health.STALLED,
    AlertSubject.NEEDS_ATTENTION: lambda one: one.health in _ATTENTION_STATES,
    AlertSubject.LIMIT: lambda one: (
        one.forecast is not None
        and one.forecast.mode == EnforcementMode.ENFORCE
        and one.forecast.fires_in_ms is not None
        and one.forecast.fires_in_ms <= LIMIT_TIMEOUT_MS
    ),
}
_WORDS: Mapping[str, tuple[str, str]] = {
    AlertSubject.STALLED: ("is stalled", "are stalled"),
    AlertSubject.NEEDS_ATTENTION: ("is stalled or falls behind", "are stalled or fall behind"),
    AlertSubject.LIMIT: ("reaches a limit within 5 min", "reach a limit within 5 min"),
    AlertSubject.DECISION: ("had a policy action", "had policy actions"),
    AlertSubject.SYSTEM_CONDITION: ("is reported", "are reported"),
}
Members = dict[str, float]
"""Members of an alert by name, with the time since when each matches (seconds since 1970)."""


def get_rule(instance: Instance, number: str | int) -> AlertRule:
    """Return the alert rule with this number. Raises OperatorError `unknown_alert`."""
    text = str(number)
    found = (
        AlertRule.objects.filter(instance=instance, pk=int(text)).first()
        if text.isascii() and text.isdigit() and len(text) < 18
        else None
    )
    if found is None:
        raise OperatorError(
            "unknown_alert", f"The alert {text[:50]!r} doesn't exist.", "See the page Alerts."
        )
    return found


def create(actor: Actor, rule: AlertRule) -> AlertRule:
    """Store a rule that a form has validated, and record it in the audit."""
    rule.created_by = actor.name[:200]
    with transaction.atomic():
        rule.save()
        facts = {
            "about": rule.about,
            "client": rule.client,
            "for_s": rule.for_s,
            "webhook": rule.host,
            "emails": rule.emails,
        }
        audit.record(actor, "alert.create", f"{rule.instance.name}: alert {rule.name}", after=facts)
    return rule


def delete(actor: Actor, rule: AlertRule, reason: str) -> None:
    """Delete a rule with its alerts and messages."""
    with transaction.atomic():
        audit.record(actor, "alert.delete", f"{rule.instance.name}: alert {rule.name}", reason=reason)
        rule.delete()


def evaluate_alerts(now: datetime) -> None:
    """Open and close the alerts of all rules according to the present state. Called every ten seconds.

    Unknown state changes nothing: while the broker doesn't answer, its rules are skipped. While a member of
    a group doesn't answer, clients that may be connected there stay in their alert.
    """
    found: dict[str, Sequence[ClientEntry] | None] = {}
    partly: set[str] = set()
    for rule in AlertRule.objects.select_related("instance").order_by("pk")[:MAX_RULES]:
        name = rule.instance.name
        if rule.about in _FITS and name not in found:
            try:
                with collect_unreachable() as unreached:
                    found[name] = live.instance_snapshot(name).clients
            except SluiceError:
                found[name] = None
            if unreached:
                partly.add(name)
        clients = found.get(name)
        if rule.about in _FITS and clients is None:
            continue
        reported = {one.name for one in clients or ()} if name in partly and rule.about in _FITS else None
        _judge(rule, _members(rule, clients or [], now), now, reported)


def _members(rule: AlertRule, clients: Sequence[ClientEntry], now: datetime) -> Members:
    """Return the clients or conditions that match a rule now, each with the time since when."""
    fits = _FITS.get(rule.about)
    if fits is not None:
        return {one.name: now.timestamp() for one in clients if _meant(rule, one.name) and fits(one)}
    if rule.about == AlertSubject.DECISION:
        rows = Decision.objects.filter(
            instance=rule.instance, at__gte=now - DECISION_LASTS, mode=EnforcementMode.ENFORCE
        )
        found = rows.order_by("-at").values_list("client", "at")[: 4 * MAX_MEMBERS]
        return {client: at.timestamp() for client, at in found if _meant(rule, client)}
    conditions = (one for one in system_conditions.current_conditions() if one.key != system_conditions.ALERT)
    return {one.word: (one.since or now).timestamp() for one in conditions}


def _meant(rule: AlertRule, client: str) -> bool:
    """Whether the rule's client pattern matches the client. An empty pattern matches every client."""
    return not rule.client or name_matches(rule.client, client)


def _judge(rule: AlertRule, found: Members, now: datetime, reported: set[str] | None = None) -> None:
    """Update the alert of one rule: create it as pending, open it, change its members, or close it.

    Args:
        rule: The rule. At most one of its alerts isn't closed.
        found: Members that match now.
        now: The present time.
        reported: Names of all clients of the members that answered, when some didn't; None when all answered.
            An open alert retains its members that aren't among them.
    """
    with transaction.atomic():
        alert = Alert.objects.select_for_update().filter(rule=rule, closed_at=None).first()
        if alert is not None and alert.opened_at is not None and reported is not None:
            found = {
                **{name: since for name, since in alert.members.items() if name not in reported},
                **found,
            }
        if not found:
            if alert is not None and alert.opened_at is None:
                alert.delete()
            elif alert is not None:
                alert.closed_at = now
                alert.save()
                queue_messages(alert, now, closed=True)
            return
        if alert is None:
            alert = Alert(rule=rule, begun_at=now)
        before: Members = alert.members
        shown = list(found.items())[:MAX_MEMBERS]
        alert.members = {name: min(since, before.get(name, since)) for name, since in shown}
        required_s = 0 if rule.about == AlertSubject.DECISION else rule.for_s
        firing = [name for name, since in alert.members.items() if now.timestamp() - since >= required_s]
        if firing:
            alert.sentence = alert_sentence(rule.about, firing, len(found) - len(shown))
            alert.begun_at = min(
                alert.begun_at,
                datetime.fromtimestamp(min(alert.members[name] for name in firing), now.tzinfo),
            )
        opens = bool(firing) and alert.opened_at is None
        if opens:
            alert.opened_at = now
        alert.save()
        if opens:
            queue_messages(alert, now, closed=False)


def alert_sentence(about: str, names: Sequence[str], more: int = 0) -> str:
    """Return an alert's sentence, such as "3 clients are stalled: a, b and c".

    `more` is the number of further members without a name.
    """
    one, many = _WORDS[about]
    number = len(names) + more
    if number == 1:
        return f"{names[0]} {one}."
    noun = "system conditions" if about == AlertSubject.SYSTEM_CONDITION else "clients"
    named = ", ".join(sorted(names)[:MAX_NAMED])
    remainder = f" and {number - MAX_NAMED:,} more" if number > MAX_NAMED else ""
    return f"{number:,} {noun} {many}: {named}{remainder}."


def queue_messages(alert: Alert, now: datetime, *, closed: bool) -> None:
    """Queue one message per address and webhook of the alert's rule. `closed`: the alert has closed."""
    rule = alert.rule
    targets = [(EMAIL, one) for one in rule.addresses] + ([(WEBHOOK, rule.webhook)] if rule.webhook else [])
    AlertMessage.objects.bulk_create(
        AlertMessage(alert=alert, channel=channel, target=target, over=closed, due_at=now)
        for channel, target in targets
    )


def send_due_messages(now: datetime) -> int:
    """Send due messages for at most `SENDING_S`, and return how many were tried.

    The next call sends the rest. Messages to different hosts are sent at the same time. A host that answered
    slowly gets its further messages only while no other host has due ones, and none in this call if the slow
    attempt failed. So it doesn't delay messages to others.
    """
    tried, began, slow_hosts, failed_hosts = 0, time.monotonic(), set[str](), set[str]()
    while tried < MAX_AT_ONCE and (elapsed_s := time.monotonic() - began) <= SENDING_S:
        attempt_at = now + timedelta(seconds=elapsed_s)
        first: dict[str, AlertMessage] = {}
        for message in _due_messages(attempt_at):
            if (host := _host(message)) not in failed_hosts:
                first.setdefault(host, message)
        chosen = [one for host, one in first.items() if host not in slow_hosts] or list(first.values())
        if not chosen:
            break
        claimed = [one for one in chosen[: MAX_AT_ONCE - tried] if _claim(one, attempt_at)]
        tried += len(claimed)
        outcomes = _attempt_all(claimed)
        ended_at = now + timedelta(seconds=int(time.monotonic() - began))
        for message, (problem, took_s) in zip(claimed, outcomes, strict=True):
            _store_outcome(message, problem, ended_at)
            if took_s > SLOW_S:
                slow_hosts.add(_host(message))
                if problem:
                    failed_hosts.add(_host(message))
    return tried


def _due_messages(now: datetime) -> QuerySet[AlertMessage]:
    """Return the messages that are due, the longest waiting ones first."""
    due = AlertMessage.objects.filter(state=MessageState.WAITING, due_at__lte=now).order_by("due_at", "pk")
    return due.select_related("alert__rule__instance")[:MAX_DUE]


def _pause(message: AlertMessage) -> timedelta:
    """Return the pause after the message's next attempt fails."""
    return FIRST_PAUSE * int(3**message.attempts)


def _claim(message: AlertMessage, now: datetime) -> bool:
    """Claim a message until its attempt has certainly ended. Return False if another sender has claimed it.

    Only one of two senders finds the same number of attempts.
    """
    row = AlertMessage.objects.filter(pk=message.pk, state=MessageState.WAITING, attempts=message.attempts)
    until = now + timedelta(seconds=EMAIL_DEADLINE_S) + _pause(message)
    return bool(row.update(attempts=F("attempts") + 1, due_at=until))


def _host(message: AlertMessage) -> str:
    """Return the host that a message is sent to; "" for the mail server."""
    return "" if message.channel == EMAIL else urlsplit(message.target).netloc


def _attempt_all(messages: Sequence[AlertMessage]) -> list[tuple[str, float]]:
    """Send messages to different hosts at the same time. Return the results of `_attempt`."""
    if len(messages) <= 1:
        return [_attempt(message) for message in messages]
    with ThreadPoolExecutor(len(messages), thread_name_prefix="alerts") as pool:
        return list(pool.map(_attempt, messages))


def _attempt(message: AlertMessage) -> tuple[str, float]:
    """Send a message. Return the problem, or "", and the seconds that it took. Uses no database."""
    began = time.monotonic()
    try:
        (_send_email if message.channel == EMAIL else _call_webhook)(message)
    except (SluiceError, OSError, smtplib.SMTPException, ValueError) as error:
        problem = error.sentence if isinstance(error, SluiceError) else f"{type(error).__name__}: {error}"
        return problem[:500], time.monotonic() - began
    return "", time.monotonic() - began


def _store_outcome(message: AlertMessage, problem: str, ended_at: datetime) -> None:
    row = AlertMessage.objects.filter(pk=message.pk)
    if not problem:
        row.update(state=MessageState.SENT, problem="")
        return
    is_last = message.attempts + 1 >= MAX_ATTEMPTS
    row.update(
        problem=problem,
        state=MessageState.FAILED if is_last else MessageState.WAITING,
        due_at=ended_at + _pause(message),
    )


def _send_email(message: AlertMessage) -> None:
    if not settings.SLUICE_SMTP_URL:
        raise ValueError("no mail server is configured (SLUICE_SMTP_URL)")
    alert, rule = message.alert, message.alert.rule
    state = "Resolved: " if message.over else ""
    subject = to_mail_header(f"[Sluice {rule.instance.name}] {state}{rule.name}")
    lines = [escape_line(alert.sentence), "", f"Since {alert.begun_at:%Y-%m-%d %H:%M:%S} UTC."]
    if message.over and alert.closed_at is not None:
        lines.append(f"Resolved at {alert.closed_at:%Y-%m-%d %H:%M:%S} UTC.")
    email = EmailMessage(subject, "\n".join(lines), None, [message.target])
    call_within(EMAIL_DEADLINE_S, lambda sockets: bounded_mail.send(sockets, email))


def _call_webhook(message: AlertMessage) -> None:
    alert, rule = message.alert, message.alert.rule
    body = {
        "instance": rule.instance.name,
        "alert": rule.name,
        "about": rule.about,
        "state": "over" if message.over else "open",
        "sentence": alert.sentence,
        "since": alert.begun_at.isoformat(),
        "members": sorted(alert.members)[:MAX_MEMBERS],
    }
    address = check_address(message.target)
    webhooks.post_webhook(
        address, json.dumps(body).encode(), "application/json", f"alert-message-{message.pk}"
    )


def delete_old_alerts(now: datetime) -> None:
    """Delete alerts that closed more than `CLOSED_RETENTION` ago."""
    Alert.objects.filter(closed_at__lt=now - CLOSED_RETENTION).delete()
