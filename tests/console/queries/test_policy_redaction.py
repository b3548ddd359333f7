"""Redaction of policies and journal holders: foreign parts are absent, and own parts stay."""

from __future__ import annotations

from typing import Any

import pytest

from broker_core.documents.journals import SegmentEntry
from console.access.rights import EffectiveAccess, GrantedRight
from console.choices import Permission
from console.queries.document_diff import diff_documents
from console.queries.policy_redaction import is_entry_path, patterns_overlap, visible_document
from console.queries.run_redaction import OTHER_READERS, redact_segments


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("carrier-ua", "carrier-*", True),
        ("board-jfk", "carrier-*", False),
        ("*", "carrier-*", True),
        ("*-jfk", "board-*", True),
        ("board-*", "carrier-*", False),
        ("*-jfk", "*-lax", False),
        ("b*", "board-*", True),
        ("carrier-ua", "carrier-ua", True),
    ],
)
def test_patterns_overlap_if_some_name_matches_both(one: str, other: str, overlap: bool) -> None:
    assert patterns_overlap(one, other) is patterns_overlap(other, one) is overlap


def test_entries_that_apply_to_visible_clients_stay() -> None:
    def rule(name: str, **scope: str) -> dict[str, Any]:
        return {"name": name, "scope": scope}

    document = {
        "pool": {"message_memory_limit": 1},
        "rules": [
            rule("all"),
            rule("own", client="carrier-u*"),
            rule("topic", topic="flights.>"),
            rule("foreign", client="board-*"),
            rule("user", user="zoe"),
            rule("durable", subscription="orders"),
            {"name": "guarded", "protected": ["board-jfk", "carrier-ua"]},
            "no entry",
        ],
        "quotas": [{"topic": "a", "user": "zoe"}, {"topic": "b"}],
        "access": {"users": [{"name": "zoe"}], "entitlements": [{"who": ["zoe"]}]},
    }
    found = visible_document(document, ["carrier-*"])
    assert found == {
        "pool": {"message_memory_limit": 1},
        "rules": [
            *document["rules"][:3],
            {"name": "guarded", "protected": ["carrier-ua"]},
            "no entry",
        ],
        "quotas": [{"topic": "b"}],
        "access": {"users": [], "entitlements": []},
    }
    assert visible_document(document, None) is document


def test_differences_of_entries_are_known_by_their_path() -> None:
    before: dict[str, Any] = {"pool": {"message_memory_limit": 1}, "rules": [], "access": {"users": []}}
    after = {
        "pool": {"message_memory_limit": 2},
        "rules": [{"name": "late", "scope": {"client": "board-*"}}],
        "quotas": [{"topic": "a", "user": "zoe"}],
        "access": {"users": [{"name": "zoe", "clients": ["desk-*"]}]},
    }
    paths = [one.path for one in diff_documents(before, after)]
    assert [path for path in paths if not is_entry_path(path)] == ["pool.message_memory_limit"]
    assert len(paths) == 3


def test_holders_of_visible_clients_stay_and_all_others_are_one() -> None:
    own = [
        "durable subscription orders of carrier-ua",
        "paused subscription 7 of carrier-ua",
        "replay of carrier-aa",
        "spool of carrier-ua",
    ]
    foreign = ["durable subscription carrier-ua of board-jfk", "snapshot for 3", "lake of carrier-ua"]
    segment = SegmentEntry(
        name="s",
        path="s",
        state="sealed",
        compressed=False,
        first_sequence=1,
        last_sequence=2,
        first_at=1,
        last_at=2,
        bytes=3,
        records=2,
        pinned_by=[*own, *foreign],
    )
    access = EffectiveAccess((GrantedRight(frozenset({Permission.VIEW}), clients="carrier-*"),))
    assert redact_segments([segment], "sluice-1", access)[0].pinned_by == [*own, OTHER_READERS]
