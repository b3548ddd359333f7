"""Checks for every address: declared, protected by role, audited if it changes data, and without effect if
it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import Resolver404, resolve

from api.permissions import declared_need
from broker_core.errors import OperatorError
from console import current_instance
from console.access.rights import PublicAccess
from console.choices import (
    ROLE_PERMISSIONS,
    TOKEN_PERMISSIONS,
    ActorKind,
    PendingChangeKind,
    Permission,
    Role,
    RunKind,
    RunState,
)
from console.models import (
    Action,
    ActionRun,
    AlertRule,
    AuditEvent,
    Grant,
    Instance,
    PendingChange,
    PolicyDraft,
)
from console.services import operators
from console.services import runs as runs_service
from console.services.actors import SYSTEM, Actor, access_of
from console.services.pending_changes.control import CONTROL_CHANGE_KINDS
from console.services.policies import ensure_instance
from tests.api.doors import DOORS, NO_RUN, READS, WRITES, Door, addresses, send
from tests.support.control_plane import person
from tests.support.fake_broker import FakeBroker
from tests.support.seed import seed_history

REFUSED = (401, 403)
ASKING = [
    door for door in DOORS if not door.path.endswith("auth/login")
]  # a login answers 401 to a wrong password for every caller
BOOKKEEPING = {
    "django_session",
    "axes_accesslog",
    "axes_accessattempt",
    "axes_accessfailurelog",
    "console_writeprobe",
}
"""Tables that looking may change: logins, and the row by which `/readyz` sees that it can write."""


def declared(callback: Any) -> Any:
    view = getattr(callback, "cls", None)
    return view.needs if view is not None and "needs" in vars(view) else getattr(callback, "needs", None)


@cache
def route_of(path: str) -> str | None:
    """Return the URL pattern that matches a path without its query, or None."""
    try:
        return str(resolve(path).route)
    except Resolver404:
        return None


def logged_in(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def refused(answer: Any) -> bool:
    return answer.status_code in REFUSED or (
        answer.status_code == 302 and answer["Location"].startswith("/login/?next=")
    )


@pytest.mark.parametrize(("route", "pattern"), [pytest.param(*one, id=one[0] or "/") for one in addresses()])
def test_every_address_declares_what_it_needs_and_is_walked(route: str, pattern: Any) -> None:
    needs = declared(pattern.callback)
    assert needs is not None, f"{route} declares no `needs`"
    view = getattr(pattern.callback, "cls", None)
    methods = {"get", "post", "put", "patch", "delete"}
    offered = {name.upper() for name in methods if view is not None and hasattr(view, name)}
    assert not offered or offered == set(needs), f"{route} has methods {offered}, but declares {set(needs)}"
    walked = {door.method for door in DOORS if route_of(door.route) == route}
    assert walked >= (offered or {"GET"} & walked), f"{route}: add its methods to tests/api/doors.py"
    assert walked, f"{route} is missing in tests/api/doors.py"


@pytest.mark.parametrize("door", DOORS, ids=str)
def test_the_list_says_what_the_address_declares(door: Door) -> None:
    match = resolve(door.route)
    view = getattr(match.func, "cls", None)
    assert door.need == (declared_need(view, door.method) if view is not None else match.func.needs)


def lets_in(door: Door, role: Role) -> bool:
    return (
        isinstance(door.need, PublicAccess) or {door.need, door.also or door.need} <= ROLE_PERMISSIONS[role]
    )


def unlike(client: Client, doors: list[Door], expected: Callable[[Door], bool]) -> list[str]:
    """Return the doors whose answer to this client differs from `expected`."""
    return [str(door) for door in doors if refused(send(client, door)) == expected(door)]


@pytest.mark.django_db
def test_nobody_comes_in_without_an_account(broker: FakeBroker) -> None:
    assert unlike(Client(), ASKING, lambda door: door.need is PublicAccess.EVERYONE) == []
    assert all(refused(send(Client(), door)) for door in DOORS if door not in ASKING)


@pytest.mark.parametrize("role", Role)
def test_a_role_reads_what_it_may_and_changes_nothing_else(role: Role, broker: FakeBroker) -> None:
    client = logged_in(person("one", role))
    doors = [door for door in ASKING if door.method == "GET" or not lets_in(door, role)]
    assert unlike(client, doors, lambda door: lets_in(door, role)) == []


@pytest.mark.parametrize("door", [door for door in WRITES if door in ASKING], ids=str)
def test_roles_with_the_permission_come_in(door: Door, broker: FakeBroker) -> None:
    for role in Role:
        if lets_in(door, role):
            assert not refused(send(logged_in(person(f"one-{role}", role)), door)), role


@pytest.mark.django_db
def test_a_role_elsewhere_opens_nothing_here(broker: FakeBroker) -> None:
    client = logged_in(person("elsa", Role.ADMINISTRATOR, instance=ensure_instance("elsewhere")))
    doors = [door for door in DOORS if isinstance(door.need, Permission)]
    assert unlike(client, doors, lambda door: False) == []


def takes_instance(door: Door) -> bool:
    view = getattr(resolve(door.route).func, "cls", None)
    return view is not None and not getattr(view, "whole_installation", False)


def of_instance(door: Door, name: str) -> Door:
    return door._replace(path=f"{door.path}{'&' if '?' in door.path else '?'}instance={name}")


def looking_at(client: Client, name: str) -> Client:
    session = client.session
    session[current_instance.KEY] = name
    session.save()
    return client


@pytest.mark.django_db
def test_who_may_do_all_on_one_instance_comes_into_no_other(broker: FakeBroker) -> None:
    """API requests name the other instance by `?instance=`, while the session has selected the account's
    own.

    The test above covers pages, which show the session's instance.
    """
    client = logged_in(person("petra", Role.ADMINISTRATOR, instance=ensure_instance("prices")))
    doors = [door for door in DOORS if isinstance(door.need, Permission)]
    asked = [door for door in doors if takes_instance(door)]
    assert len(asked) > 60
    looking_at(client, "prices")
    assert unlike(client, [of_instance(one, "sluice-1") for one in asked], lambda door: False) == []


@pytest.mark.django_db
def test_a_row_of_another_instance_is_neither_shown_nor_touched(broker: FakeBroker) -> None:
    """An account with rights on its own instance must not reach rows of another instance by their number."""
    theirs, prices = seed_history("sluice-1"), ensure_instance("prices")
    petra = person("petra", Role.ADMINISTRATOR, instance=prices)
    rows = {
        "/drafts/1": (
            f"/drafts/{PolicyDraft.objects.create(instance=theirs, title='theirs', document={}, base=1).pk}"
        ),
        "/actions/1": f"/actions/{Action.objects.filter(instance=theirs).latest('pk').pk}",
        "/alerts/1": (
            f"/alerts/{AlertRule.objects.create(instance=theirs, name='theirs', about='stalled').pk}"
        ),
        "/grants/1": (
            f"/grants/{Grant.objects.create(user=person('vera'), role=Role.VIEWER, instance=theirs).pk}"
        ),
    }
    # The effect of a door on a run depends on the run's state.
    runs = {run.state: run for run in ActionRun.objects.filter(instance=theirs)}
    for state in set(RunState.values) - set(runs):
        runs[state] = ActionRun.objects.create(
            instance=theirs, kind=RunKind.ACTION, state=state, actor="maria"
        )
    client = looking_at(logged_in(petra), "prices")
    named = []
    for door in DOORS:
        if isinstance(door.need, Permission):
            for one, other in rows.items():
                if f"{one}/" in f"{door.path}/":
                    named.append(door._replace(path=door.path.replace(one, other)))
            if NO_RUN in door.path:
                named += [door._replace(path=door.path.replace(NO_RUN, str(run.pk))) for run in runs.values()]
    before = everything_of(theirs)
    shown = {str(one): send(client, one).status_code for one in named}
    assert len(shown) > 20
    assert {door: status for door, status in shown.items() if status not in (302, 403, 404)} == {}
    assert everything_of(theirs) == before
    for run in runs.values():
        for act in (runs_service.cancel, runs_service.repeat):
            with pytest.raises(OperatorError) as refused:
                act(Actor(ActorKind.PERSON, "petra", petra.pk, access=access_of(petra)), run)
            assert refused.value.code == "not_allowed"
        item = PendingChange(instance=prices, kind=PendingChangeKind.RUN_CANCEL, target=str(run.pk))
        with pytest.raises(OperatorError) as unknown:
            CONTROL_CHANGE_KINDS[PendingChangeKind.RUN_CANCEL].preview(item, None)
        assert unknown.value.code == "unknown_run"
    assert everything_of(theirs) == before


@pytest.mark.parametrize("door", [door for door in DOORS if "board-jfk" in door.path], ids=str)
def test_a_role_for_other_clients_doesn_t_open_this_one(door: Door, broker: FakeBroker) -> None:
    theirs = logged_in(person("otto", Role.OPERATOR, client_pattern="carrier-*"))
    assert refused(send(theirs, door))
    assert not refused(send(theirs, door, door.path.replace("board-jfk", "carrier-ua")))
    assert not refused(send(logged_in(person("olga", Role.OPERATOR, client_pattern="board-*")), door))


@pytest.mark.parametrize("door", [door for door in DOORS if "flights.AA" in door.path], ids=str)
def test_a_role_for_other_topics_doesn_t_open_this_one(door: Door, broker: FakeBroker) -> None:
    theirs = logged_in(person("otto", Role.OPERATOR, topic_pattern="flights.UA.>"))
    assert refused(send(theirs, door))
    assert not refused(send(theirs, door, door.path.replace("flights.AA", "flights.UA.*")))


@pytest.mark.parametrize("door", WRITES, ids=str)
def test_an_attempt_to_change_something_leaves_an_event_whatever_comes_of_it(
    door: Door, broker: FakeBroker
) -> None:
    before = AuditEvent.objects.count()
    answer = send(Client(), door)
    denied = AuditEvent.objects.order_by("pk")[before:]
    assert [event.result for event in denied] == ["denied"]
    assert {event.request_id for event in denied} == {answer["X-Request-Id"]}
    client = logged_in(person("maria", Role.ADMINISTRATOR))
    before = AuditEvent.objects.count()
    answer = send(client, door)
    events = AuditEvent.objects.order_by("pk")[before:]
    assert (len(events) >= 1) != (door.looks and answer.status_code < 400)
    assert {(event.request_id, event.source) for event in events} <= {(answer["X-Request-Id"], "127.0.0.1")}


@pytest.mark.django_db
def test_walking_every_address_with_get_changes_nothing(settings: Any, broker: FakeBroker) -> None:
    seed_history(settings.SLUICE_INSTANCE)
    maria = person("maria", Role.ADMINISTRATOR)
    client = logged_in(maria)
    _, token = operators.create_token(
        SYSTEM, maria, "walk", lifetime=timedelta(days=1), scope=TOKEN_PERMISSIONS
    )
    broker.asked.clear()
    before = everything()
    for door in DOORS:
        client.get(door.path)
        Client().get(door.path, headers={"Authorization": f"Bearer {token}"})
    assert everything() == before
    changing = {"disconnect", "apply", "journal_swap", "journal_remove", "publish"}
    assert not changing & {asked["do"] for asked in broker.asked}


def everything() -> dict[str, list[Any]]:
    """Return every row of every table, except session tables."""
    return {
        model._meta.db_table: sorted(map(repr, model._base_manager.values_list()))
        for model in apps.get_models()
        if model._meta.db_table not in BOOKKEEPING
    }


def everything_of(instance: Instance) -> dict[str, list[Any]]:
    """Return every row that belongs to the instance."""
    return {
        model._meta.db_table: sorted(map(repr, model._base_manager.filter(instance=instance).values_list()))
        for model in apps.get_models()
        if any(field.name == "instance" for field in model._meta.get_fields())
    }


def test_reading_sends_the_request_id(broker: FakeBroker) -> None:
    client = logged_in(person("maria", Role.ADMINISTRATOR))
    assert [str(door) for door in READS if len(send(client, door)["X-Request-Id"]) != 32] == []
    assert get_user_model().objects.count() == 1
