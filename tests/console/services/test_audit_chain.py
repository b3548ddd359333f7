"""The audit chain detects every changed row, and `manage.py audit verify` reports it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from console.management.commands.audit import HELP
from console.models import AuditChainHead, AuditChainLink, AuditEvent, append_only
from console.services import audit, audit_chain
from console.services.actors import Actor


def write(actor: Actor, count: int = 5, action: str = "policy.change") -> list[AuditEvent]:
    values: list[Any] = [{"a": 1.0, "b": [1, 2.5, None, True], "c": {"d": "é\n"}}, 7, "x", None, []]
    return [
        audit.record(actor, action, f"n {n}", before=values[n % 5], after=values[-1 - n % 5], reason="x" * n)
        for n in range(count)
    ]


def verified() -> audit_chain.ChainReport:
    return audit_chain.verify_chain(timezone.now())


def by_hand(statement: str, *values: Any) -> None:
    """Execute SQL without the audit's triggers, as a database administrator can."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            for drop in append_only.SQLITE[:2]:
                cursor.execute(drop)
        else:
            cursor.execute(f"DROP TRIGGER IF EXISTS {append_only.TABLE}_keep ON {append_only.TABLE}")
        cursor.execute(statement, values)


def test_what_was_written_holds(db: None, actor: Actor) -> None:
    assert verified() == (0, 0, "", None)
    before = AuditEvent.objects.count()
    write(actor, 12)
    found = verified()
    assert (found.events - before, found.first_break) == (12, None)
    assert found.head == AuditChainLink.objects.order_by("-number")[0].digest


@pytest.mark.parametrize(
    "change",
    [
        "actor = 'nobody'",
        "reason = 'another'",
        "after = 'null'",
        "at = '2026-01-01 00:00:00'",
        "expires_at = '2026-01-02 00:00:00'",
        "result = 'denied'",
        "source = '10.0.0.1'",
    ],
)
def test_a_changed_event_is_named(change: str, db: None, actor: Actor) -> None:
    made = write(actor)
    by_hand(f"UPDATE console_auditevent SET {change} WHERE id = %s", made[2].pk)
    broken = verified().first_break
    assert broken is not None
    assert (broken.event_id, broken.problem) == (made[2].pk, "the event was changed")
    with pytest.raises(CommandError, match=rf"event {made[2].pk}\): the event was changed"):
        call_command("audit", "verify")


def test_an_event_that_went_before_its_time_is_named(db: None, actor: Actor) -> None:
    made = write(actor)
    by_hand("DELETE FROM console_auditevent WHERE id = %s", made[1].pk)
    broken = verified().first_break
    assert broken is not None
    assert (broken.event_id, broken.problem) == (
        made[1].pk,
        "the event was deleted before its retention ended",
    )


def test_an_event_that_was_put_in_is_named(db: None, actor: Actor) -> None:
    write(actor)
    sneaked = AuditEvent(actor="nobody", actor_kind="person", action="login")
    sneaked.save()
    broken = verified().first_break
    assert broken is not None
    assert (broken.event_id, broken.problem) == (sneaked.pk, "the event was inserted outside the chain")


def test_links_that_were_taken_out_are_named(db: None, actor: Actor) -> None:
    made = write(actor)
    by_hand("DELETE FROM console_auditevent WHERE id = %s", made[4].pk)
    AuditChainLink.objects.filter(event_id=made[4].pk).delete()
    assert (verified().first_break or (0, 0, ""))[2] == "the newest links are missing"
    by_hand("DELETE FROM console_auditevent WHERE id = %s", made[1].pk)
    AuditChainLink.objects.filter(event_id=made[1].pk).delete()
    assert "is missing" in (verified().first_break or (0, 0, ""))[2]


def test_a_link_that_was_made_to_fit_its_event_breaks_the_next(db: None, actor: Actor) -> None:
    made = write(actor)
    by_hand("UPDATE console_auditevent SET reason = 'another' WHERE id = %s", made[2].pk)
    content = audit_chain.event_digest(AuditEvent.objects.get(pk=made[2].pk))
    link = AuditChainLink.objects.get(event_id=made[2].pk)
    AuditChainLink.objects.filter(pk=link.pk).update(
        content=content, digest=audit_chain.link_digest(link.former, content)
    )
    broken = verified().first_break
    assert broken is not None
    assert (broken.event_id, broken.problem) == (made[3].pk, "it doesn't continue the previous link")


def test_expiry_is_no_break_and_leading_links_go_with_their_events(
    db: None, actor: Actor, settings: Any
) -> None:
    settings.SLUICE_AUDIT_RETENTION_DAYS = {"*": 1, "policy": 0}
    write(actor, 3, "login")
    kept = write(actor, 2)
    write(actor, 2, "login")
    AuditChainLink.objects.get(event_id=kept[0].pk)
    later = timezone.now() + timedelta(days=2)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    by_hand("DELETE FROM console_auditevent WHERE action = %s", "login")
    assert audit_chain.verify_chain(timezone.now()).first_break is not None
    assert audit_chain.verify_chain(later).first_break is None
    assert audit_chain.delete_expired_links() == 3
    assert audit_chain.verify_chain(later).first_break is None
    assert AuditChainLink.objects.order_by("number").first() == AuditChainLink.objects.get(
        event_id=kept[0].pk
    )


def test_many_writers_make_one_chain(transactional_db: None, actor: Actor) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def one(number: int) -> None:
        try:
            write(actor, 5)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(one, range(4)))
    found = verified()
    assert (found.events, found.first_break) == (20, None)
    assert AuditChainHead.objects.get().number == 20


def test_a_transaction_that_is_taken_back_leaves_no_link(db: None, actor: Actor) -> None:
    from django.db import transaction

    write(actor, 2)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        write(actor, 2)
        raise ZeroDivisionError
    write(actor, 1)
    assert (verified().events, verified().first_break) == (3, None)


def test_the_command_teaches(db: None, actor: Actor, capsys: Any) -> None:
    write(actor, 2)
    call_command("audit", "verify")
    assert "The audit is intact: 2 events" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        call_command("audit", "--help")
    assert "at the same number" in " ".join(capsys.readouterr().out.split())
    assert "the exit code is then 1" in " ".join(HELP.split())
