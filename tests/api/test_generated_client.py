"""The client that openapi-python-client generates from the schema performs the main tasks against the real
console.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from tests.support.console_server import NAME, PASSWORD
from tests.support.consoles import ROOT, running_console

pytestmark = pytest.mark.slow
PACKAGE = "sluice_client"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running_console() as (address, _):
        yield address


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Generate the client package and make it importable. A warning fails the test, since it means a
    skipped address.
    """
    folder = tmp_path_factory.mktemp("generated")
    (folder / "config.yaml").write_text("post_hooks: []\n")
    command = [
        str(Path(sys.executable).with_name("openapi-python-client")),
        "generate",
        "--path",
        str(ROOT / "docs" / "openapi.yaml"),
        "--output-path",
        str(folder / "project"),
        "--config",
        str(folder / "config.yaml"),
        "--fail-on-warning",
    ]
    subprocess.run(command, check=True, cwd=folder)
    sys.path.insert(0, str(folder / "project"))
    try:
        yield folder / "project"
    finally:
        sys.path.remove(str(folder / "project"))
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]


@pytest.fixture(scope="module")
def client(made: Path, address: str) -> Any:
    """Return the generated client, with a token created as docs/api.md describes."""
    with httpx.Client(base_url=address) as browser:
        come_in = browser.post("/api/v1/auth/login", json={"username": NAME, "password": PASSWORD})
        assert come_in.status_code == 200
        body = {"name": "generated", "lifetime": "1h", "scope": ["view", "edit_policies", "run_actions"]}
        body["own_password"] = PASSWORD
        answer = browser.post(
            "/api/v1/tokens",
            json=body,
            headers={"X-CSRFToken": browser.cookies["csrftoken"], "Referer": address},
        )
        assert answer.status_code == 201
    package = importlib.import_module(PACKAGE)
    return package.AuthenticatedClient(base_url=address, token=answer.json()["token"], timeout=30)


def endpoint(name: str) -> ModuleType:
    return importlib.import_module(f"{PACKAGE}.api.{name}")


def model(name: str) -> Any:
    return getattr(importlib.import_module(f"{PACKAGE}.models"), name)


def test_it_edits_a_policy_and_publishes_it(client: Any) -> None:
    draft = endpoint("drafts.drafts_create").sync(client=client, body=model("DraftWrite")(title="generated"))
    changes = {"changes": {"client_policy": {"client_max_capacity": 33}}}
    edited = endpoint("drafts.drafts_partial_update").sync_detailed(
        draft.id,
        client=client,
        if_match=str(draft.version),
        body=model("PatchedDraftPatch").from_dict(changes),
    )
    assert edited.status_code == 200
    stale = endpoint("drafts.drafts_publish_create").sync_detailed(
        draft.id, client=client, if_match="1", body=model("DraftPublish")(reason="x")
    )
    assert (stale.status_code, stale.parsed.code) == (412, "draft_changed")
    told = endpoint("drafts.drafts_publish_create").sync(
        draft.id,
        client=client,
        if_match=edited.headers["ETag"],
        body=model("DraftPublish")(reason="generated", confirmed=True),
    )
    assert type(told).__name__ == "PolicyChangeResult", told
    assert told.applied
    policy = endpoint("policies.policies_retrieve").sync(client=client)
    assert policy.revision == told.revision
    assert policy.document["client_policy"]["client_max_capacity"] == 33


def test_it_reads_lag_and_state_of_clients(client: Any) -> None:
    one = endpoint("clients.clients_retrieve").sync("board-jfk", client=client)
    assert (one.name, one.lag_messages > 0) == ("board-jfk", True)
    page = endpoint("clients.clients_list").sync(client=client, page_size=5)
    assert (page.count, len(page.results)) == (18, 5)
    assert {str(each.delivery) for each in page.results} & {
        "offlined",
        "live",
        "draining",
        "replaying",
        "paused",
    }
    nobody = endpoint("clients.clients_retrieve").sync_detailed("nobody", client=client)
    assert (nobody.status_code, nobody.parsed.code) == (404, "unknown_client")


def test_it_archives_journals(client: Any) -> None:
    asked = endpoint("journals.journals_create").sync_detailed(
        "archive", client=client, body=model("JournalAction")(age="7d")
    )
    assert asked.status_code == 202
    run = endpoint("runs.runs_retrieve").sync(asked.parsed.id, client=client)
    assert (str(run.kind), run.plan["action"]) == ("archive", "archive")
    refused = endpoint("journals.journals_create").sync_detailed(
        "remove", client=client, body=model("JournalAction")(age="7d")
    )
    assert (refused.status_code, refused.parsed.code) == (409, "plan_needed")
    plan = endpoint("journals.journals_plan_create").sync(
        "remove", client=client, body=model("JournalAction")(age="7d")
    )
    assert len(plan.hash_) == 64
