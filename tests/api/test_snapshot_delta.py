from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from api.snapshot_delta import apply_delta, make_delta
from broker_core.documents.clients import Health
from broker_core.documents.instance import InstanceStatus, Snapshot
from tests.support.fake_broker import make_client

ONE = make_client("a")
CLIENT = st.builds(
    lambda lag, health, gone: structs.replace(ONE, lag_messages=lag, health=health, gone=gone),
    st.integers(0, 3),
    st.sampled_from(Health),
    st.dictionaries(st.sampled_from(["discarded", "expired"]), st.integers(1, 2)),
)
CLIENTS = st.dictionaries(st.sampled_from("abcd"), CLIENT).map(
    lambda made: [structs.replace(made[name], name=name) for name in sorted(made)]
)
STATUS = st.builds(
    lambda revision, states: InstanceStatus(instance="sluice-1", revision=revision, clients_by_state=states),
    st.integers(1, 3),
    st.dictionaries(st.sampled_from(["live", "paused"]), st.integers(0, 2)),
)
SNAPSHOTS = st.builds(
    lambda at, status, clients: Snapshot(at=at, status=status, clients=clients),
    st.integers(0, 9),
    STATUS,
    CLIENTS,
)


def wire(document: Any) -> Any:
    return json.loads(msgspec.json.encode(document))


def held(snapshot: Snapshot) -> dict[str, Any]:
    return {key: value for key, value in wire(snapshot).items() if key != "replays"}


@given(SNAPSHOTS, SNAPSHOTS)
def test_what_is_held_and_the_delta_make_the_new_one(old: Snapshot, new: Snapshot) -> None:
    assert apply_delta(held(old), wire(make_delta(old, new))) == held(new)


@given(SNAPSHOTS)
def test_nothing_changed_is_a_small_delta(snapshot: Snapshot) -> None:
    assert make_delta(snapshot, snapshot) == {"at": snapshot.at}
