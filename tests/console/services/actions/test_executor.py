from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from broker_core.access import hash_token
from broker_core.errors import OperatorError
from console.access.rights import EffectiveAccess, GrantedRight
from console.choices import ActorKind, Permission, RunState
from console.models import (
    Action,
    ActionRun,
    AuditEvent,
    ClientMinute,
    ClientSample,
    Decision,
    Instance,
    LossRecord,
    ResourceSample,
    RunLock,
)
from console.queries import policies as read
from console.queue_names import CHORES_QUEUE, USUAL_QUEUE
from console.services import execution, policies, runs
from console.services.actions import editor, event_runs, planner
from console.services.actions.steps import external
from console.services.actions.triggers import TriggerEvent
from console.services.actors import Actor
from tests.support.fake_broker import FakeBroker

EVERYTHING = EffectiveAccess((GrantedRight(frozenset(Permission)),))
MARIA = Actor(ActorKind.PERSON, "maria", 7, access=EVERYTHING)


def make(
    instance: Instance,
    steps: list[dict[str, Any]],
    name: str = "one",
    when: list[dict[str, Any]] | None = None,
    **more: Any,
) -> Action:
    return editor.create(MARIA, instance, {"name": name, "when": when or [], "steps": steps, **more})


def run_of(action: Action, **variables: str) -> ActionRun:
    run = event_runs.start_run(MARIA, action, {"on": "hand"}, variables, timezone.now())
    done = execution.execute_run(run.pk)
    assert done is not None
    return done


@pytest.fixture
def listener() -> Iterator[Any]:
    """Run an HTTP server that records requests in `asked` and answers with `status`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.server.asked.append((self.path, dict(self.headers), body))  # type: ignore[attr-defined]
            self.send_response(self.server.status)  # type: ignore[attr-defined]
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()
            self.wfile.write(b"thanks")

        def log_message(self, *args: Any) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.status = [], 200  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_steps_are_done_in_order_with_the_triggers_variables(instance: Instance, broker: FakeBroker) -> None:
    action = make(
        instance,
        [
            {"if": "client", "client": "board-*"},
            {"do": "disconnect", "client": "{{AMPS_CLIENT_NAME}}", "reason": "at {{AMPS_INSTANCE_NAME}}"},
            {"do": "event", "name": "done"},
        ],
    )
    run = run_of(action, AMPS_CLIENT_NAME="board-jfk")
    assert run.state == RunState.SUCCEEDED, run.log
    assert broker.asked[-1] == {"do": "disconnect", "name": "board-jfk", "reason": "at sluice-1"}
    assert [step["state"] for step in run.steps] == ["held", "done", "done"]
    assert run.progress == 100
    assert AuditEvent.objects.filter(action="run.action.end").count() == 1


def test_a_condition_that_doesnt_hold_leaves_the_rest_out(instance: Instance, broker: FakeBroker) -> None:
    action = make(
        instance, [{"if": "expression", "expression": "/AMPS_CLIENT_NAME = 'x'"}, {"do": "shut_down"}]
    )
    run = run_of(action, AMPS_CLIENT_NAME="y")
    assert (run.state, [step["state"] for step in run.steps]) == (RunState.SUCCEEDED, ["not_held"])
    assert broker.asked == []


def test_a_failed_step_stops_the_rest(instance: Instance, broker: FakeBroker) -> None:
    action = make(
        instance, [{"do": "disconnect", "client": "nobody"}, {"do": "disconnect", "client": "board-jfk"}]
    )
    run = run_of(action)
    assert (run.state, run.error["code"]) == (RunState.FAILED, "unknown_client")
    assert [step["state"] for step in run.steps] == ["failed"]
    assert len(broker.asked) == 1


def test_an_age_that_a_request_gives_is_checked_when_the_step_begins(
    instance: Instance, broker: FakeBroker
) -> None:
    action = make(instance, [{"do": "archive", "age": "{{AGE}}"}])
    run = run_of(action, AGE="soon")
    assert (run.state, run.error["code"]) == (RunState.FAILED, "bad_action")
    assert broker.asked == []


def test_old_samples_and_decisions_go(instance: Instance) -> None:
    now = timezone.now()
    for days in (1, 30):
        ClientSample.objects.create(
            instance=instance, client="one", at=now - timedelta(days=days), state="live"
        )
        ClientMinute.objects.create(
            instance=instance, client="one", at=now - timedelta(days=days), state="live"
        )
        ResourceSample.objects.create(instance=instance, kind="pool", name="p", at=now - timedelta(days=days))
        LossRecord.objects.create(instance=instance, client="one", at=now - timedelta(days=days), messages=1)
        Decision.objects.create(
            instance=instance, client="one", at=now - timedelta(days=days), action="disconnect"
        )
    run = run_of(make(instance, [{"do": "truncate", "what": "statistics", "age": "7d"}]))
    assert run.steps[0]["result"] == {"rows": {"statistics": 4}}
    kept = [
        model.objects.count() for model in (ClientSample, ClientMinute, ResourceSample, LossRecord, Decision)
    ]  # type: ignore[attr-defined]
    assert kept == [1, 1, 1, 1, 2]
    run = run_of(make(instance, [{"do": "truncate", "what": "both", "age": "7d"}], name="two"))
    assert run.steps[0]["result"] == {"rows": {"statistics": 0, "decisions": 1}}


def test_a_webhook_gets_the_variables_and_a_key_for_repeats(
    instance: Instance, listener: Any, settings: Any
) -> None:
    settings.SLUICE_WEBHOOK_HOSTS = [f"127.0.0.1:{listener.server_port}"]
    url = f"http://127.0.0.1:{listener.server_port}/hook?x=1"
    run = run_of(make(instance, [{"do": "webhook", "url": url}]), WHO="x")
    assert run.state == RunState.SUCCEEDED, run.log
    ((path, headers, body),) = listener.asked
    assert path == "/hook?x=1"
    assert json.loads(body)["variables"]["WHO"] == "x"
    assert headers["Idempotency-Key"] == f"{run.pk}.0"


@pytest.mark.parametrize("status", [302, 404, 500])
def test_a_webhook_that_is_refused_or_sent_elsewhere_fails(
    instance: Instance, listener: Any, settings: Any, status: int
) -> None:
    settings.SLUICE_WEBHOOK_HOSTS, listener.status = ["127.0.0.1:" + str(listener.server_port)], status
    run = run_of(make(instance, [{"do": "webhook", "url": f"http://127.0.0.1:{listener.server_port}/"}]))
    assert (run.state, run.error["code"], len(listener.asked)) == (RunState.FAILED, "webhook_failed", 1)


def test_a_webhook_whose_host_is_declared_no_longer_is_not_called(
    instance: Instance, listener: Any, settings: Any
) -> None:
    settings.SLUICE_WEBHOOK_HOSTS = ["127.0.0.1:" + str(listener.server_port)]
    action = make(instance, [{"do": "webhook", "url": f"http://127.0.0.1:{listener.server_port}/"}])
    settings.SLUICE_WEBHOOK_HOSTS = []
    assert run_of(action).error["code"] == "bad_action"
    assert listener.asked == []


def test_events_raise_each_other_only_so_often(instance: Instance) -> None:
    make(instance, [{"do": "event", "name": "again"}], when=[{"on": "event", "name": "again"}])
    (run,) = event_runs.start_runs_for_events(instance, [TriggerEvent("event", {"SLUICE_EVENT": "again"})])
    depth = 0
    while run is not None:
        done = execution.execute_run(run.pk)
        assert done is not None
        run = ActionRun.objects.filter(state=RunState.WAITING).first()
        depth += 1
    assert done.error["code"] == "event_loop"
    assert depth == external.MAX_DEPTH + 1


def test_an_action_with_too_many_runs_waiting_takes_no_more(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_runs, "MAX_WAITING", 2)
    make(instance, [{"do": "event", "name": "x"}], when=[{"on": "logon", "client": "risk-*"}])
    logons = [
        TriggerEvent("logon", {"AMPS_CLIENT_NAME": name})
        for name in ("risk-1", "desk-1", "risk-2", "risk-3", "risk-4")
    ]
    assert len(event_runs.start_runs_for_events(instance, logons)) == 2
    assert event_runs.refused["one"] >= 2


def test_one_run_of_an_action_at_a_time_and_the_next_follows(instance: Instance) -> None:
    action = make(instance, [{"do": "event", "name": "x"}])
    first, second = (
        event_runs.start_run(MARIA, action, {"on": "hand"}, {}, timezone.now()) for _ in range(2)
    )
    assert runs.claim_run(first.pk, timezone.now()) is not None
    assert runs.claim_run(second.pk, timezone.now()) is None
    runs.finish(first, RunState.SUCCEEDED)
    assert RunLock.objects.count() == 0
    assert runs.claim_run(second.pk, timezone.now()) is not None


def test_an_action_waits_for_a_run_of_the_same_kind(instance: Instance, actor: Actor) -> None:
    direct = runs.request(actor, instance, runs.RunKind.ARCHIVE, {"age": "7d", "age_s": 604_800})
    run = event_runs.start_run(
        MARIA, make(instance, [{"do": "archive", "age": "7d"}]), {"on": "hand"}, {}, timezone.now()
    )
    assert runs.claim_run(direct.pk, timezone.now()) is not None
    assert runs.claim_run(run.pk, timezone.now()) is None
    assert RunState(ActionRun.objects.get(pk=run.pk).state) == RunState.WAITING


def test_a_lost_run_is_repeated_from_the_step_it_was_in(instance: Instance, broker: FakeBroker) -> None:
    action = make(instance, [{"do": "disconnect", "client": "board-jfk"}, {"do": "event", "name": "x"}])
    run = event_runs.start_run(MARIA, action, {"on": "hand"}, {}, timezone.now())
    taken = runs.claim_run(run.pk, timezone.now() - timedelta(minutes=5))
    assert taken is not None
    ActionRun.objects.filter(pk=run.pk).update(
        steps=[{"do": "disconnect", "state": "done", "result": {}, "variables": {"A": "1"}}]
    )
    assert [lost.pk for lost in runs.mark_lost_runs(timezone.now())] == [run.pk]
    assert RunLock.objects.count() == 0
    run.refresh_from_db()
    again = runs.repeat(MARIA, run)
    done = execution.execute_run(again.pk)
    assert done is not None
    assert (done.state, [step["state"] for step in done.steps]) == (RunState.SUCCEEDED, ["done", "done"])
    assert done.first_id == run.pk
    assert broker.asked == []  # the finished step is not repeated


def test_a_run_is_repeated_once_and_then_its_repetition(instance: Instance, broker: FakeBroker) -> None:
    action = make(instance, [{"do": "event", "name": "x"}])
    run = event_runs.start_run(MARIA, action, {"on": "hand"}, {}, timezone.now())
    ActionRun.objects.filter(pk=run.pk).update(state=RunState.CANCELLED)
    run.refresh_from_db()
    again = runs.repeat(MARIA, run)
    for state in (
        RunState.WAITING,
        RunState.RUNNING,
        RunState.APPROVAL,
        RunState.SUCCEEDED,
        RunState.CANCELLED,
        RunState.FAILED,
    ):
        ActionRun.objects.filter(pk=again.pk).update(state=state)
        with pytest.raises(OperatorError) as refused:
            runs.repeat(MARIA, run)
        assert refused.value.code == "not_repeatable" and str(again.pk) in refused.value.sentence
    again.refresh_from_db()
    third = runs.repeat(MARIA, again)
    ActionRun.objects.filter(pk=third.pk).update(state=RunState.SUCCEEDED)
    for earlier in (run, again):  # the third run has completed their steps
        with pytest.raises(OperatorError, match=str(third.pk)):
            runs.repeat(MARIA, earlier)


def test_logs_are_rotated_and_never_over_another(instance: Instance, settings: Any, tmp_path: Path) -> None:
    settings.SLUICE_HOME = tmp_path
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "broker.log").write_text("words")
    (tmp_path / "log" / "web.log").write_text("")
    run = run_of(make(instance, [{"do": "rotate_log"}]))
    (name,) = run.steps[0]["result"]["rotated"]
    assert (tmp_path / "log" / name).read_text() == "words"
    assert not (tmp_path / "log" / "broker.log").exists()


def test_a_transport_is_switched_off_as_a_new_revision(instance: Instance, broker: FakeBroker) -> None:
    run = run_of(make(instance, [{"do": "transport", "name": "websocket", "enabled": "no"}]))
    assert run.steps[0]["result"] == {"revision": 2, "in_force": True}
    back = run_of(make(instance, [{"do": "revision", "number": 1}], name="two"))
    assert back.steps[0]["result"] == {"revision": 3, "in_force": True}
    assert instance.transports.get(name="websocket").enabled


def test_a_revision_that_comes_back_brings_its_rules_and_users(
    instance: Instance, broker: FakeBroker
) -> None:
    rule = {
        "name": "far-behind",
        "signal": "oldest_age",
        "limit": 5000,
        "scope": {"transport": "tcp"},
        "ladder": [{"action": "warn"}],
    }
    user = {"name": "maria", "token": hash_token("a-token"), "clients": ["desk-*"]}
    document = read.newest_revision(instance).document  # type: ignore[union-attr]
    wanted = {
        **document,
        "rules": [rule],
        "access": {"users": [user], "entitlements": [{"who": ["maria"], "publish": ["a.>"]}]},
    }
    policies.publish(MARIA, wanted)
    policies.publish(MARIA, document)
    assert (instance.users.count(), instance.entries.count()) == (0, 0)
    run = run_of(make(instance, [{"do": "revision", "number": 2}]))
    assert run.steps[0]["result"] == {"revision": 4, "in_force": True}, run.log
    first, back = (read.revision_numbered(instance, number).document for number in (2, 4))
    assert {**back, "revision": 2} == first
    assert (instance.users.get().name, instance.entries.get().settings["name"]) == ("maria", "far-behind")
    assert instance.entitlements.get().publish == ["a.>"]


@pytest.mark.parametrize(
    "step", [{"do": "webhook", "url": "http://127.0.0.1:9/"}, {"do": "pipeline", "job": "audit"}]
)
def test_an_action_that_waits_for_others_takes_no_slot_of_the_chores(
    instance: Instance, settings: Any, step: dict[str, str]
) -> None:
    settings.SLUICE_WEBHOOK_HOSTS = ["127.0.0.1:9"]
    archive = {"do": "archive", "age": "7d"}
    assert runs.queue_for(run_of(make(instance, [archive], "archive"))) == CHORES_QUEUE
    for number, steps in enumerate(([step, archive], [archive, step])):
        assert runs.queue_for(run_of(make(instance, steps, f"both {number}"))) == USUAL_QUEUE


def test_a_webhook_after_the_last_step_on_journals_holds_up_no_other_run_of_journals(
    instance: Instance, broker: FakeBroker, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SLUICE_WEBHOOK_HOSTS = ["127.0.0.1:9"]
    held: list[set[str]] = []

    def look(*_: Any) -> None:
        held.append(set(RunLock.objects.values_list("kind", flat=True)))
        raise OperatorError("webhook_failed", "It can't be called.", "")

    monkeypatch.setattr("console.services.webhooks.post_webhook", look)
    truncate = {"do": "truncate", "what": "both", "age": "7d"}
    run = run_of(make(instance, [truncate, {"do": "webhook", "url": "http://127.0.0.1:9/"}]))
    execution.execute_run(run.pk)
    assert held == [{f"action:{run.action_id}"}]
    assert not RunLock.objects.exists()


HOOK_FIRST = [{"do": "webhook", "url": "http://127.0.0.1:9/"}, {"do": "archive", "age": "7d"}]


def test_a_webhook_before_a_step_on_journals_holds_up_no_other_run_of_journals(
    instance: Instance, broker: FakeBroker, actor: Actor, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SLUICE_WEBHOOK_HOSTS = ["127.0.0.1:9"]
    direct = runs.request(actor, instance, runs.RunKind.ARCHIVE, {"age": "7d", "age_s": 604_800})
    held: list[set[str]] = []

    def post(*_: Any, **__: Any) -> SimpleNamespace:
        held.append(set(RunLock.objects.values_list("kind", flat=True)))
        assert runs.claim_run(direct.pk, timezone.now()) is not None
        return SimpleNamespace(status=200, text="")

    monkeypatch.setattr("console.services.webhooks.post_webhook", post)
    monkeypatch.setattr("console.services.journals.perform_run", lambda *_: {"segments": [], "bytes": 0})
    action = make(instance, HOOK_FIRST)
    run = event_runs.start_run(MARIA, action, {"on": "hand"}, {}, timezone.now())
    plan = planner.plan_steps(instance, action.steps, run.parameters["variables"])
    ActionRun.objects.filter(pk=run.pk).update(plan_hash=plan["hash"])
    waits = execution.execute_run(run.pk)
    assert held == [{f"action:{action.pk}"}]
    assert waits is not None
    assert (waits.state, [step["do"] for step in waits.steps]) == (RunState.WAITING, ["webhook"])
    second = event_runs.start_run(MARIA, action, {"on": "hand"}, {}, timezone.now())
    assert runs.claim_run(second.pk, timezone.now()) is None, (
        "a run must not overtake the first run of its action"
    )
    assert runs.mark_lost_runs(timezone.now()) == []
    assert execution.execute_run(run.pk) is None, "another run has locked the journals"
    runs.finish(direct, RunState.SUCCEEDED)
    done = execution.execute_run(run.pk)
    assert done is not None
    assert (done.state, [step["do"] for step in done.steps]) == (RunState.SUCCEEDED, ["webhook", "archive"])
    assert (len(held), done.started_at) == (1, waits.started_at)
    assert not RunLock.objects.exists()


@pytest.mark.parametrize("when", ["running", "waiting"])
def test_a_run_that_is_cancelled_before_its_step_on_journals_holds_nothing_any_more(
    instance: Instance,
    broker: FakeBroker,
    actor: Actor,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    settings.SLUICE_WEBHOOK_HOSTS = ["127.0.0.1:9"]
    direct = runs.request(actor, instance, runs.RunKind.ARCHIVE, {"age": "7d", "age_s": 604_800})
    run = event_runs.start_run(MARIA, make(instance, HOOK_FIRST), {"on": "hand"}, {}, timezone.now())

    def post(*_: Any, **__: Any) -> SimpleNamespace:
        runs.claim_run(direct.pk, timezone.now())
        if when == "running":
            runs.cancel(MARIA, run)
        return SimpleNamespace(status=200, text="")

    monkeypatch.setattr("console.services.webhooks.post_webhook", post)
    ended = execution.execute_run(run.pk)
    if when == "waiting":
        ended = runs.cancel(MARIA, run)
    assert ended is not None and ended.state == RunState.CANCELLED
    assert not RunLock.objects.filter(run=run).exists()
