"""Texts, colours and empty sections of pages that once showed codes or wrong statements."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.template.loader import render_to_string
from django.test import Client
from django.utils import timezone

from console.models import AuditEvent, Decision, Instance, StagedRollout
from console.queries import system_conditions
from console.queries.system_conditions import SystemCondition
from console.services import drafts, rollouts, second_factor
from console.services.actors import Actor
from tests.support.fake_broker import FakeBroker
from tests.support.html import minified

RULE = {
    "name": "behind",
    "mode": "enforce",
    "signal": "backlog_bytes",
    "shape": "soft_for",
    "limit": 1024,
    "hold_ms": 5_000,
    "ladder": [{"action": "ask_to_close"}, {"action": "disconnect", "after_ms": 10_000}],
}


def test_a_draft_shows_acts_signals_and_modes_by_their_names(
    client: Client, operator: Any, broker: FakeBroker, instance: Instance, actor: Actor
) -> None:
    draft = drafts.create_draft(actor, "rules")
    changes = {"rules": [RULE], "qpid": [{"topic": "a.>", "depth": 1000}]}
    drafts.edit_draft(actor, draft.pk, changes)
    client.force_login(operator)
    page = minified(client.get(f"/policies/drafts/{draft.pk}/"))
    cells = re.findall(r'data-label="(?:When|Does|Mode|Acts within)"><div>(.*?)</div></td>', page, re.S)
    shown = " ".join(re.sub(r"<[^>]+>", "|", one) for one in cells)
    assert "ask it to close" in shown and "disconnect it: " in shown and "carried out" in shown
    assert "backlog in bytes" in shown
    compared = minified(client.post(f"/policies/drafts/{draft.pk}/preview/"))
    shown += re.sub(r' title="[^"]*"', "", compared[compared.index("Differences from") :])
    assert "ask it to close, then disconnect it after 10.0 s" in shown
    for code in ("ask_to_close", "backlog_bytes", "soft_for", "enforce", "shadow", "cancel_subscription"):
        assert code not in shown, (code, shown)


def test_the_reason_of_a_withdrawn_rollout_names_the_settings_label(
    broker: FakeBroker, instance: Instance, actor: Actor
) -> None:
    draft = drafts.create_draft(actor, "staged")
    drafts.edit_draft(actor, draft.pk, {"client_policy": {"client_max_capacity": 5}})
    plan = rollouts.RolloutPlan(client="desk-*", most_decisions=1)
    drafts.publish(actor, draft.pk, reason="try", rollout=plan)
    Decision.objects.create(
        instance=instance,
        at=timezone.now(),
        client="desk-1",
        revision=2,
        action="disconnect",
        mode="shadow",
        rule="amps.client_message_age_limit",
        details={"held_at": 1},
    )
    rollouts.stop_if_exceeded(instance)
    why = StagedRollout.objects.get().why
    assert "by ClientMessageAgeLimit" in why and "amps." not in why


@pytest.mark.parametrize(
    ("is_event", "said"), [(True, "withdrawn</b> (<time"), (False, "withdrawn</b> since <time")]
)
def test_an_event_is_told_with_its_moment_and_a_state_with_its_beginning(is_event: bool, said: str) -> None:
    one = SystemCondition(
        "rollout", "Staged revision 2 was withdrawn", "", "", timezone.now(), False, is_event=is_event
    )
    assert said in minified(render_to_string("components/standings.html", {"found": [one]}))


def test_a_right_password_that_waits_for_its_code_is_not_denied(operator: Any, instance: Instance) -> None:
    operator.set_password("correct horse battery")
    operator.save()
    second_factor.offer_device(operator)
    operator.totpdevice_set.update(confirmed=True)
    browser = Client()
    browser.post("/login/", {"username": "maria", "password": "correct horse battery"})
    (event,) = AuditEvent.objects.filter(object__contains="maria", action__startswith="login")
    assert (event.action, event.result, event.actor) == ("login.password", "done", "maria")
    browser.post("/login/second-factor/", {"code": ""})
    assert not AuditEvent.objects.filter(action__in=("page.post", "login")).exists()
    browser.post("/login/second-factor/", {"code": "000000"})
    assert [one.result for one in AuditEvent.objects.filter(action="login")] == ["denied"]


@pytest.mark.parametrize("part", ["imported", "skipped", "unrelated"])
def test_an_import_shows_no_empty_table(part: str) -> None:
    row = {"line": 1, "where": "a", "what": "b", "into": "c", "why": "d"}
    imported = {name: [row] for name in ("imported", "skipped", "unrelated")} | {part: []}
    page = render_to_string("components/imported.html", {"imported": imported})
    assert page.count("<table") == 2 and ": 0</p>" in page


def test_an_overdue_revision_is_red_wherever_it_is_shown(
    client: Client, operator: Any, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(operator)
    for patience, colour in ((timedelta(hours=1), "state-warn"), (timedelta(0), "state-bad")):
        monkeypatch.setattr(system_conditions, "APPLY_TIMEOUT", patience)
        assert colour in minified(client.get("/policies/in-force/"))
