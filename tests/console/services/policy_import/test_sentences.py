"""Sentences of importers about features that Sluice lacks agree with the features that it has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.services import policy_import

ROOT = Path(__file__).parents[4]
MODULES = sorted(Path(policy_import.__file__).parent.glob("*.py"))
DENIAL = re.compile(
    r"Sluice(?:'s \w+)? (?:has|keeps|knows|offers) no ([^.:;]+)"
    r"|Sluice (?:doesn't|does not|can't|cannot|never|isn't) ([^.:;]+)"
)
FEATURES = {
    "queue": "broker_core/protocols/stomp/destinations.py",
    "replicat": "broker_core/sites",
    "network of brokers": "broker_core/sites",
    "link": "broker_core/sites",
    "site": "broker_core/sites",
    "group": "broker_core/group",
    "durable": "broker_core/subscriptions",
    "shared": "broker_core/replay/sharing",
    "replay": "broker_core/replay",
    "journal": "broker_core/journal",
    "transaction log": "broker_core/journal",
    "conflat": "broker_core/delivery",
    "snapshot": "broker_core/replay/conflated_snapshot.py",
    "selector": "broker_core/filters/selectors",
    "filter": "broker_core/filters",
    "schedule": "console/services/actions/schedule.py",
    "compress": "console/services/actions",
    "archiv": "console/services/actions",
    "alert": "console/models/alert.py",
    "quota": "broker_core/access",
    "tls": "broker_core/transports",
    "websocket": "broker_core/transports",
    "stomp": "broker_core/protocols/stomp",
}
"""Words of denials, with the code that would make such a denial false."""
ABSENT = {
    "blocks producers for it",
    "equivalent",
    "equivalent setting",
    "importer for ",
    "JMS bridges",
    "SOW topics and no views",
    "such option",
    "virtual destinations",
}
"""Everything that importers say Sluice lacks. Check a new one against the code before you add it."""


def denials() -> Iterator[tuple[str, str]]:
    """Yield module and denied feature for each sentence of an importer that denies one."""
    for module in MODULES:
        tree = ast.parse(module.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for found in DENIAL.finditer(node.value):
                    yield module.name, found[1] or found[2]


def test_every_denied_feature_is_absent() -> None:
    assert {denied for _, denied in denials()} == ABSENT


@pytest.mark.parametrize("word", FEATURES)
def test_no_sentence_denies_a_feature_that_exists(word: str) -> None:
    assert (ROOT / FEATURES[word]).exists(), "the feature was removed: remove the word"
    assert not [one for one in denials() if word in one[1].lower()]


def test_queues_and_replication_of_amps_have_advice() -> None:
    imported = policy_import.import_policy(
        "amps",
        "<AMPSConfig><ClientMaxCapacity>5</ClientMaxCapacity><SOW><Queue><Name>q</Name></Queue><Topic><Name>t"
        "</Name></Topic></SOW><Replication><Destination><Name>ny</Name></Destination></Replication></AMPSConfig>",
    )
    reasons = {one.what: one.why for one in imported.skipped}
    assert "queue.NAME" in reasons["Name=q"]
    assert "no SOW topics" in reasons["Name=t"]
    assert "other sites" in reasons["Name=ny"]
