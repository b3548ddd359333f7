"""Live window of a tab: after any deltas it equals a fresh window, and it contains only requested rows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import live_window
from api.live_window import SharedSnapshot, WindowRequest
from broker_core.documents.clients import ClientEntry, Health
from broker_core.documents.instance import InstanceStatus, Snapshot
from tests.support.fake_broker import make_client

NAMES = ("ant", "bee", "cat", "dog", "eel")
HEALTHS = (Health.STALLED, Health.FALLING_BEHIND, Health.KEEPS_UP)


def client(name: str, health: Health = Health.KEEPS_UP, behind: float = 0.0, **more: Any) -> ClientEntry:
    return msgspec.structs.replace(make_client(name), health=health, seconds_behind=behind, **more)


def shared(*clients: ClientEntry, at: int = 1) -> SharedSnapshot:
    return SharedSnapshot(Snapshot(at=at, status=InstanceStatus(instance="i", pid=at), clients=list(clients)))


def wire(message: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(message))
    return found


clients = st.lists(
    st.builds(client, st.sampled_from(NAMES), st.sampled_from(HEALTHS), st.integers(0, 3).map(float)),
    unique_by=lambda one: one.name,
)
wants = st.builds(
    WindowRequest,
    view=st.sampled_from(["totals", "clients", "client", "flow"]),
    search=st.sampled_from(["", "e"]),
    health=st.sampled_from(["", "stalled"]),
    sort=st.sampled_from(["", "name", "-seconds_behind"]),
    offset=st.integers(0, 3),
    limit=st.integers(1, 4),
    client=st.sampled_from(NAMES),
    names=st.sampled_from([(), ("bee", "ant", "gone")]),
)


@given(st.lists(clients, min_size=1, max_size=6), wants)
def test_deltas_lead_to_what_a_fresh_window_says(
    moments: list[list[ClientEntry]], want: WindowRequest
) -> None:
    held, told = None, {}
    for at, everyone in enumerate(moments):
        before, held = held, live_window.build_window(shared(*everyone, at=at), want, None)
        if before is None:
            told = wire(live_window.window_snapshot(held))
        else:
            told = live_window.apply_window_delta(told, wire(live_window.window_delta(before, held)))
        assert told == wire(live_window.window_snapshot(held))


def test_a_tab_gets_its_rows_and_counts_of_all() -> None:
    found = live_window.build_window(
        shared(*(client(f"c{n:03}", behind=float(n)) for n in range(300))),
        WindowRequest(view="clients", offset=10, limit=5),
        None,
    )
    assert found.order == ["c289", "c288", "c287", "c286", "c285"]
    assert (found.total, found.totals["clients"], found.totals["health"]) == (300, 300, {"keeps up": 300})
    assert "subscriptions" not in found.rows["c289"] and "forecast" in found.rows["c289"]


def test_held_rows_stay_in_their_order_whatever_becomes_of_them() -> None:
    want = WindowRequest(view="clients", limit=2, names=("b", "a"))
    found = live_window.build_window(
        shared(client("a", Health.STALLED), client("b"), client("c", Health.STALLED)), want, None
    )
    assert (found.order, found.total) == (["b", "a"], 3)


def test_one_client_comes_whole_and_nobody_else() -> None:
    found = live_window.build_window(
        shared(client("a"), client("b")), WindowRequest(view="client", client="b"), None
    )
    assert found.order == ["b"] and "subscriptions" in found.rows["b"]
    assert (
        live_window.build_window(shared(client("a")), WindowRequest(view="client", client="b"), None).order
        == []
    )


@pytest.mark.parametrize("view", ["clients", "client"])
def test_names_that_may_not_be_seen_are_neither_told_nor_counted(view: str) -> None:
    want = WindowRequest(view=view, client="web-1", names=("web-1",))  # type: ignore[arg-type]
    found = live_window.build_window(shared(client("desk-1"), client("web-1")), want, ["desk-*"])
    assert found.order == [] and found.totals["clients"] == 1


def test_search_finds_parts_of_name_transport_address_and_user() -> None:
    everyone = shared(client("a", user="Ada"), client("b", remote="10.1.2.3:4"))
    for text, name in (("ada", "a"), ("10.1.2", "b")):
        assert live_window.build_window(everyone, WindowRequest(view="clients", search=text), None).order == [
            name
        ]


def test_a_column_that_there_isnt_sorts_as_usual() -> None:
    found = live_window.build_window(
        shared(client("a"), client("b", Health.STALLED)), WindowRequest(view="clients", sort="nonsense"), None
    )
    assert found.order == ["b", "a"]


def test_what_is_asked_is_bounded() -> None:
    assert live_window.parse_query("") is None
    assert live_window.parse_query("view=clients&limit=50") == WindowRequest(view="clients", limit=50)
    assert live_window.parse_query("view=clients&instance=prices") == WindowRequest(view="clients")
    assert live_window.requested_instance("view=clients&instance=prices") == "prices"
    for bad in ("view=everything", "view=clients&limit=100000", "view=clients&offset=-1", "view=clients&x=1"):
        with pytest.raises((ValueError, msgspec.MsgspecError)):
            live_window.parse_query(bad)
    with pytest.raises(msgspec.MsgspecError):
        live_window.parse_message('{"view": "clients", "limit": 5000}')
