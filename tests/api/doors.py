"""Every address of the web process with the permission it needs; tests of roles, audit, GET and query
counts use this list.

tests/api/test_doors.py fails for an address that is missing here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.urls import URLPattern, URLResolver, get_resolver

from console.access.rights import Need, PublicAccess
from console.choices import Permission
from console.choices import Permission as P
from console.models import Action

NO_RUN = "00000000-0000-0000-0000-000000000000"
SENTENCE = {"signal": "oldest_age", "limit": "20s", "action": "warn", "mode": "shadow"}
AGE = {"action": "archive", "age": "7d"}


class Door(NamedTuple):
    """A method of one address.

    `body` may be invalid: the tests check only whether the permission is granted.
    """

    method: str
    path: str
    need: Need
    body: dict[str, Any] | None = None
    looks: bool = False  # a POST that changes nothing
    also: Permission | None = None  # a further permission, which this body or row requires

    @property
    def route(self) -> str:
        """Return the path without its query."""
        return self.path.partition("?")[0]

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def _api(method: str, path: str, need: Need, body: dict[str, Any] | None = None, looks: bool = False) -> Door:
    return Door(method, f"/api/v1/{path}", need, body, looks)


DOORS = [
    Door("GET", "/healthz", PublicAccess.EVERYONE),
    Door("GET", "/readyz", PublicAccess.EVERYONE),
    Door("GET", "/metrics", PublicAccess.EVERYONE),
    _api("GET", "schema", PublicAccess.OWN_ACCOUNT),
    _api("POST", "auth/login", PublicAccess.EVERYONE, {"username": "nobody", "password": "wrong"}),
    _api("POST", "auth/logout", PublicAccess.OWN_ACCOUNT),
    _api("GET", "auth/me", PublicAccess.OWN_ACCOUNT),
    _api("GET", "tokens", PublicAccess.OWN_ACCOUNT),
    _api("POST", "tokens", PublicAccess.OWN_ACCOUNT, {"name": "ci"}),
    _api("DELETE", "tokens/1", PublicAccess.OWN_ACCOUNT),
    _api("GET", "live", P.VIEW),
    _api("GET", "flow", P.VIEW),
    _api("GET", "brokers", P.VIEW),
    Door("POST", "/instance/", PublicAccess.OWN_ACCOUNT, {"instance": "sluice-1"}, looks=True),
    _api("GET", "status", P.VIEW),
    _api("GET", "transports", P.VIEW),
    _api("GET", "transports/tcp", P.VIEW),
    _api("PATCH", "transports/tcp", P.EDIT_POLICIES, {"port": 9100}),
    _api("GET", "policies", P.VIEW),
    _api("PATCH", "policies", P.EDIT_POLICIES, {"client_policy": {"client_max_capacity": 10}}),
    _api("GET", "drafts", P.VIEW),
    _api("POST", "drafts", P.EDIT_POLICIES, {"title": "x"}),
    _api("POST", "drafts/import", P.EDIT_POLICIES, {"system": "xap", "text": ""}),
    _api("GET", "drafts/1", P.VIEW),
    _api("PATCH", "drafts/1", P.EDIT_POLICIES, {"changes": {}}),
    _api("DELETE", "drafts/1", P.EDIT_POLICIES),
    _api("POST", "drafts/1/preview", P.VIEW, {}, looks=True),
    _api("POST", "drafts/1/publish", P.EDIT_POLICIES, {}),
    _api("GET", "rollouts", P.VIEW),
    _api("POST", "rollouts/promote", P.EDIT_POLICIES, {}),
    _api("POST", "rollouts/stop", P.EDIT_POLICIES, {}),
    _api("GET", "policies/revisions", P.VIEW),
    _api("GET", "policies/revisions/1", P.VIEW),
    _api("GET", "replays", P.VIEW),
    Door(
        "POST",
        "/api/v1/replays",
        P.VIEW,
        {"name": "audit", "client": "board-jfk", "topic": "flights.>"},
        also=P.ACT_ON_CLIENTS,
    ),
    _api("GET", "replays/nightly", P.VIEW),
    Door("PATCH", "/api/v1/replays/nightly", P.VIEW, {"rate": "2X"}, also=P.ACT_ON_CLIENTS),
    Door("DELETE", "/api/v1/replays/last-week", P.VIEW, also=P.ACT_ON_CLIENTS),
    Door("POST", "/api/v1/replays/nightly/pause", P.VIEW, also=P.ACT_ON_CLIENTS),
    Door("POST", "/api/v1/replays/nightly/resume", P.VIEW, also=P.ACT_ON_CLIENTS),
    Door("POST", "/api/v1/replays/nightly/cancel", P.VIEW, also=P.ACT_ON_CLIENTS),
    _api("GET", "clients", P.VIEW),
    _api("GET", "clients/board-jfk", P.VIEW),
    _api("POST", "clients/board-jfk/disconnect", P.ACT_ON_CLIENTS, {"reason": "x"}),
    _api("POST", "clients/board-jfk/pause", P.ACT_ON_CLIENTS, {"reason": "x"}),
    _api("POST", "clients/board-jfk/resume", P.ACT_ON_CLIENTS, {}),
    _api("POST", "clients/delay-mailer/offline", P.ACT_ON_CLIENTS, {}),
    _api("GET", "clients/board-jfk/effective", P.VIEW),
    _api("GET", "clients/board-jfk/forecasts", P.VIEW),
    _api("GET", "clients/board-jfk/history", P.VIEW),
    _api("GET", "decisions", P.VIEW),
    _api("GET", "ledger", P.VIEW),
    _api("GET", "durables", P.VIEW),
    _api("DELETE", "clients/board-jfk/durables/orders", P.ACT_ON_CLIENTS),
    _api("GET", "statistics", P.VIEW),
    _api("GET", "topics/flights.AA/messages", P.READ_MESSAGES),
    _api("POST", "topics/flights.AA/messages", P.PUBLISH, {"data": {"a": 1}}),
    _api("GET", "statistics?of=client&name=board-jfk&step=10", P.VIEW),
    _api("GET", "journals", P.VIEW),
    _api("POST", "journals/archive", P.RUN_ACTIONS, {"age": "7d"}),
    _api("POST", "journals/archive/plan", P.RUN_ACTIONS, {"age": "7d"}, looks=True),
    _api("POST", "journals/archive/apply", P.RUN_ACTIONS, {"age": "7d", "plan": "0"}),
    _api("POST", "pipeline/lake", P.RUN_ACTIONS, {}),
    _api("GET", "runs", P.VIEW),
    _api("GET", f"runs/{NO_RUN}", P.VIEW),
    _api("POST", f"runs/{NO_RUN}/cancel", P.RUN_ACTIONS),
    _api("POST", f"runs/{NO_RUN}/approve", P.APPROVE),
    _api("POST", f"runs/{NO_RUN}/repeat", P.RUN_ACTIONS),
    _api("GET", "actions", P.VIEW),
    _api("POST", "actions", P.EDIT_POLICIES, {"name": "x", "steps": [{"do": "revision", "number": "1"}]}),
    _api("GET", "actions/firings", P.VIEW),
    _api("GET", "actions/1", P.VIEW),
    Door("PATCH", "/api/v1/actions/1", P.EDIT_POLICIES, {"enabled": False}, also=P.RUN_ACTIONS),
    _api("DELETE", "actions/1", P.EDIT_POLICIES),
    _api("POST", "actions/1/plan", P.RUN_ACTIONS, {}, looks=True),
    _api("POST", "actions/1/apply", P.RUN_ACTIONS, {}),
    _api("POST", "actions/at/nowhere", P.RUN_ACTIONS, {}),
    _api("POST", "actions/at/nowhere/plan", P.RUN_ACTIONS, {}, looks=True),
    _api("POST", "events/nothing", P.RUN_ACTIONS, {}),
    _api("POST", "events/nothing/plan", P.RUN_ACTIONS, {}, looks=True),
    _api("GET", "schedules", P.VIEW),
    _api("GET", "audit", P.READ_AUDIT),
    _api("GET", "people", P.MANAGE_ACCESS),
    _api("POST", "people", P.MANAGE_ACCESS, {"username": "nina"}),
    _api("GET", "people/vera", P.MANAGE_ACCESS),
    _api("PATCH", "people/vera", P.MANAGE_ACCESS, {"is_active": False}),
    _api("POST", "people/vera/password", P.MANAGE_ACCESS),
    _api("POST", "people/vera/grants", P.MANAGE_ACCESS, {"role": "viewer"}),
    _api("DELETE", "grants/1", P.MANAGE_ACCESS),
    Door("GET", "/", P.VIEW),
    Door("GET", "/login/", PublicAccess.EVERYONE),
    Door("POST", "/login/", PublicAccess.EVERYONE, {"username": "nobody", "password": "wrong"}),
    Door("GET", "/login/second-factor/", PublicAccess.EVERYONE),
    Door("POST", "/login/second-factor/", PublicAccess.EVERYONE, {"code": "1"}),
    Door("GET", "/login/oidc/", PublicAccess.EVERYONE),
    Door("GET", "/login/oidc/back/", PublicAccess.EVERYONE),
    Door("GET", "/account/", PublicAccess.OWN_ACCOUNT),
    Door("GET", "/settings/", PublicAccess.OWN_ACCOUNT),
    Door("POST", "/views/columns/", PublicAccess.OWN_ACCOUNT, {"column": "name"}, looks=True),
    Door("POST", "/views/", PublicAccess.OWN_ACCOUNT, {"name": "mine"}, looks=True),
    Door("POST", "/views/1/", PublicAccess.OWN_ACCOUNT, {"name": "mine"}, looks=True),
    Door("POST", "/settings/save/", PublicAccess.OWN_ACCOUNT, {}, looks=True),
    Door("POST", "/account/password/", PublicAccess.OWN_ACCOUNT, {}),
    Door("POST", "/account/totp/begin/", PublicAccess.OWN_ACCOUNT, {}),
    Door("POST", "/account/totp/confirm/", PublicAccess.OWN_ACCOUNT, {"code": "1"}),
    Door("POST", "/account/totp/remove/", PublicAccess.OWN_ACCOUNT, {}),
    Door("POST", "/access/people/vera/second-factor/", P.MANAGE_ACCESS),
    Door("POST", "/logout/", PublicAccess.OWN_ACCOUNT),
    Door("GET", "/clients/", P.VIEW),
    Door("GET", "/flow/", P.VIEW),
    Door("GET", "/clients/board-jfk/", P.VIEW),
    Door("POST", "/clients/board-jfk/disconnect/", P.ACT_ON_CLIENTS, {}, looks=True),
    Door("GET", "/standing/", P.VIEW),
    Door("GET", "/styleguide/", P.VIEW),
    Door("GET", "/overview/verdict/", P.VIEW),
    Door("GET", "/overview/heat/", P.VIEW),
    Door("POST", "/overview/seen/", P.VIEW, {}, looks=True),
    Door("GET", "/tray/", P.VIEW),
    Door("POST", "/tray/clients/", P.ACT_ON_CLIENTS, {"kind": "pause", "client": "board-jfk"}, looks=True),
    Door("POST", "/tray/matching/", P.ACT_ON_CLIENTS, {"kind": "pause_all", "search": "nobody"}, looks=True),
    Door("POST", "/tray/1/drop/", P.VIEW, {}, looks=True),
    Door("POST", "/tray/clear/", P.VIEW, {}, looks=True),
    Door("POST", "/tray/apply/", P.VIEW, {"reason": "x"}),
    Door("GET", "/policies/rules/new/", P.EDIT_POLICIES),
    Door("POST", "/policies/rules/new/", P.EDIT_POLICIES, SENTENCE),
    Door("POST", "/policies/rules/try/", P.EDIT_POLICIES, SENTENCE, looks=True),
    Door("POST", "/policies/rules/0/remove/", P.EDIT_POLICIES, {}, looks=True),
    Door("POST", "/policies/revisions/1/roll-back/", P.EDIT_POLICIES, {}),
    Door("POST", "/policies/drafts/1/plan/", P.EDIT_POLICIES, {}, looks=True),
    Door("GET", "/clients/board-jfk/slow/", P.VIEW),
    Door("POST", "/clients/board-jfk/pause/", P.ACT_ON_CLIENTS, {}, looks=True),
    Door("POST", "/clients/board-jfk/resume/", P.ACT_ON_CLIENTS, {}, looks=True),
    Door("POST", "/clients/board-jfk/offline/", P.ACT_ON_CLIENTS, {}, looks=True),
    Door("GET", "/durables/", P.VIEW),
    Door("GET", "/replication/", P.VIEW),
    Door("GET", "/replication/now/", P.VIEW),
    Door("POST", "/clients/board-jfk/durables/orders/delete/", P.ACT_ON_CLIENTS, {}, looks=True),
    Door("GET", "/decisions/", P.VIEW),
    Door("GET", "/policies/", P.VIEW),
    Door("GET", "/policies/in-force/", P.VIEW),
    Door("POST", "/policies/instance/", P.EDIT_POLICIES, {}),
    Door("POST", "/policies/transports/tcp/", P.EDIT_POLICIES, {}),
    Door("POST", "/policies/rollout/promote/", P.EDIT_POLICIES, {}, looks=True),
    Door("POST", "/policies/rollout/stop/", P.EDIT_POLICIES, {}, looks=True),
    Door("POST", "/policies/resolve/", P.EDIT_POLICIES, {"choice": "stored"}, looks=True),
    Door("GET", "/policies/drafts/", P.VIEW),
    Door("POST", "/policies/drafts/new/", P.EDIT_POLICIES, {"title": "x"}),
    Door("POST", "/policies/drafts/import/", P.EDIT_POLICIES, {"system": "xap", "text": "a=b"}),
    Door("GET", "/policies/drafts/1/", P.VIEW),
    Door("POST", "/policies/drafts/1/preview/", P.VIEW, {}, looks=True),
    Door("POST", "/policies/drafts/1/delete/", P.EDIT_POLICIES, {}, looks=True),
    Door("GET", "/policies/drafts/1/limits/", P.EDIT_POLICIES),
    Door("POST", "/policies/drafts/1/limits/", P.EDIT_POLICIES, {}),
    Door("GET", "/policies/drafts/1/transports/tcp/", P.EDIT_POLICIES),
    Door("POST", "/policies/drafts/1/transports/tcp/", P.EDIT_POLICIES, {}),
    Door("POST", "/policies/drafts/1/transports/tcp/delete/", P.EDIT_POLICIES, {}),
    Door("GET", "/policies/drafts/1/rules/new/", P.EDIT_POLICIES),
    Door("POST", "/policies/drafts/1/rules/new/", P.EDIT_POLICIES, {}),
    Door("POST", "/policies/drafts/1/users/0/delete/", P.EDIT_POLICIES, {}),
    Door("GET", "/journals/", P.VIEW),
    Door("POST", "/journals/plan/", P.RUN_ACTIONS, AGE, looks=True),
    Door("GET", "/alerts/", P.VIEW),
    Door("POST", "/alerts/new/", P.EDIT_POLICIES, {"name": "x", "about": "stalled", "for_s": "30"}),
    Door("POST", "/alerts/1/delete/", P.EDIT_POLICIES, {}, looks=True),
    Door("GET", "/messages/", P.VIEW, also=P.READ_MESSAGES),
    Door("GET", "/messages/follow/?topic=flights.UA", P.VIEW, also=P.READ_MESSAGES),
    Door(
        "POST",
        "/messages/publish/",
        P.VIEW,
        {"topic": "flights.AA", "format": "json", "body": "1"},
        looks=True,
        also=P.PUBLISH,
    ),
    Door("GET", "/actions/", P.VIEW),
    Door("GET", "/actions/new/", P.EDIT_POLICIES),
    Door("POST", "/actions/draft/", P.EDIT_POLICIES, {"edit": "add.when"}, looks=True),
    Door("POST", "/actions/save/", P.EDIT_POLICIES, {"name": ""}),
    Door("GET", "/actions/firings/", P.VIEW),
    Door("GET", "/actions/1/", P.VIEW),
    Door("POST", "/actions/1/plan/", P.RUN_ACTIONS, {}, looks=True),
    Door("POST", "/actions/1/apply/", P.RUN_ACTIONS, {}),
    Door("POST", "/actions/1/delete/", P.EDIT_POLICIES, looks=True),
    Door("GET", "/replays/", P.VIEW),
    Door("GET", "/replays/list/", P.VIEW),
    Door(
        "POST",
        "/replays/new/",
        P.VIEW,
        {"name": "audit", "client": "board-jfk", "topic": "flights.>"},
        also=P.ACT_ON_CLIENTS,
    ),
    Door("POST", "/replays/nightly/pause/", P.VIEW, looks=True, also=P.ACT_ON_CLIENTS),
    Door("GET", "/pipeline/", P.VIEW),
    Door("GET", "/policies/drafts/1/backtest/", P.RUN_ACTIONS),
    Door("POST", "/policies/drafts/1/backtest/", P.RUN_ACTIONS, {}),
    Door("GET", "/policies/drafts/1/backtest/runs/", P.RUN_ACTIONS),
    Door("POST", "/pipeline/start/", P.RUN_ACTIONS, {}),
    Door("GET", "/pipeline/no-run/", P.VIEW),
    Door("GET", "/pipeline/no-run/plots/hours.0.svg", P.VIEW),
    Door("GET", "/pipeline/no-run/hours.csv", P.VIEW),
    Door("GET", "/pipeline/no-run/page.html", P.VIEW),
    Door("GET", "/runs/", P.VIEW),
    Door("GET", "/runs/list/", P.VIEW),
    Door("POST", "/runs/pipeline/", P.RUN_ACTIONS, {}),
    Door("POST", f"/runs/{NO_RUN}/cancel/", P.RUN_ACTIONS, looks=True),
    Door("POST", f"/runs/{NO_RUN}/approve/", P.APPROVE),
    Door("POST", f"/runs/{NO_RUN}/repeat/", P.RUN_ACTIONS),
    Door("GET", "/audit/", P.READ_AUDIT),
    Door("GET", "/access/", P.MANAGE_ACCESS),
    Door("POST", "/access/people/", P.MANAGE_ACCESS, {"username": "nina"}),
    Door("POST", "/access/people/vera/password/", P.MANAGE_ACCESS),
    Door("POST", "/access/people/vera/close/", P.MANAGE_ACCESS, looks=True),
    Door("POST", "/access/people/vera/open/", P.MANAGE_ACCESS),
    Door("POST", "/access/grants/", P.MANAGE_ACCESS, {"person": "vera", "role": "viewer"}),
    Door("POST", "/access/grants/1/revoke/", P.MANAGE_ACCESS, looks=True),
    Door("POST", "/access/tokens/", P.MANAGE_ACCESS, {"name": "ci"}),
    Door("POST", "/access/tokens/1/revoke/", P.MANAGE_ACCESS, looks=True),
]
READS = [door for door in DOORS if door.method == "GET"]
WRITES = [door for door in DOORS if door.method != "GET"]


def send(client: Any, door: Door, path: str = "") -> Any:
    """Send a request with Django's or DRF's test client: JSON to the API, a form to pages."""
    body = door.body or {}
    address = path or door.path
    if "/actions/1" in address and (
        first := Action.objects.order_by("pk").values_list("pk", flat=True).first()
    ):
        address = address.replace("/actions/1", f"/actions/{first}")  # primary keys differ between databases
    if door.method == "GET":
        return client.get(address)
    if address.startswith("/api/"):
        sent = (
            {"If-Match": "*"} if "/actions/" in address else {}
        )  # permissions are checked before the version
        return client.generic(door.method, address, json.dumps(body), "application/json", headers=sent)
    return client.post(address, body)


def addresses(resolver: URLResolver | None = None, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    """Yield every URL pattern of the web process with its route."""
    for entry in (resolver or get_resolver()).url_patterns:
        route = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from addresses(entry, route)
        else:
            yield route, entry
