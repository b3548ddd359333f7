"""Lines that describe the effect of a preview: grouped by action, with units, and marked when a rule is in
shadow.
"""

from __future__ import annotations

import msgspec

from broker_core.documents.instance import (
    AffectedEntry,
    ClosedConnectionEntry,
    LogSubscriberEntry,
    PolicyEffect,
    SettingChange,
    SettingValue,
)
from broker_core.documents.system_records import DecisionEntry
from console.queries import policy_effect


def change(
    setting: str, before: object, after: object, origin: str = "instance", old: str = "instance"
) -> SettingChange:
    return SettingChange(
        setting=setting,
        before=SettingValue(value=before, origin=old),
        after=SettingValue(value=after, origin=origin),
    )


def touched(client: str, *changes: SettingChange) -> AffectedEntry:
    return AffectedEntry(client=client, transport="tcp", subscription="", changes=list(changes))


def decided(client: str, action: str = "offline", mode: str = "enforce") -> DecisionEntry:
    return DecisionEntry(
        at=1,
        client=client,
        action=action,
        mode=mode,
        rule="amps.client_max_capacity",
        sentence=f"{client} is slow.",
    )


def made(**parts: object) -> PolicyEffect:
    nobody: dict[str, object] = {"touched": [], "acted_on": [], "cut_off": [], "unrecorded": []}
    lists = {**nobody, **{key: value for key, value in parts.items() if key in nobody}}
    counts = {f"{key}_in_all": parts.get(f"{key}_in_all", len(value)) for key, value in lists.items()}  # type: ignore[arg-type]
    acted_on: list[DecisionEntry] = lists["acted_on"]  # type: ignore[assignment]
    counts["enforced_in_all"] = parts.get("enforced_in_all", sum(one.mode == "enforce" for one in acted_on))
    counts["held_in_all"] = sum(one.held_at is not None for one in acted_on)
    return PolicyEffect(clients=500, **lists, **counts)  # type: ignore[arg-type]


def test_clients_with_equal_changes_are_one_line() -> None:
    same = change("amps.client_max_capacity", 50, 5)
    told = policy_effect.summarise_effect(
        made(touched=[touched(f"desk-{n}", same) for n in range(30)], touched_in_all=30)
    )
    (line,) = told.changes
    assert (line.sentence, line.count, line.hidden_count) == (
        "ClientMaxCapacity 50 % → 5 %, from instance",
        30,
        25,
    )


def test_values_have_the_units_people_write() -> None:
    told = policy_effect.summarise_effect(
        made(
            touched=[
                touched(
                    "a",
                    change("amps.message_memory_limit", None, 8 << 20),
                    change("amps.client_message_age_limit_ms", None, 600_000),
                ),
            ]
        )
    )
    assert told.changes[0].sentence == (
        "MessageMemoryLimit default → 8.00 MiB, from instance; "
        "ClientMessageAgeLimit no limit → 10 min 00 s, from instance"
    )


def test_a_rule_that_comes_is_said_once_and_its_limit_is_in_its_signals_unit() -> None:
    came = [
        change(f"age.{field}", None, value, "rule age", policy_effect.NOT_SET)
        for field, value in (("limit", 20_000), ("mode", "shadow"))
    ]
    moved = change("old.limit", 1_000, 20_000, "rule old", "rule old")
    told = policy_effect.summarise_effect(made(touched=[touched("a", *came, moved)]), {"old": "oldest_age"})
    assert (
        told.changes[0].sentence
        == "is now under rule age (recorded only); old: limit 1.0 s → 20.0 s, from rule old"
    )


def test_what_would_only_be_recorded_is_counted_apart() -> None:
    told = policy_effect.summarise_effect(
        made(acted_on=[decided("a"), decided("b", mode="shadow"), decided("c", mode="shadow")])
    )
    assert told.headline == "1 client offlined, 2 clients would be acted on (recorded only)."
    assert [(line.kind, line.sentence, line.recorded_only) for line in told.at_once] == [
        ("offline", "a is slow.", False),
        ("offline", "would be offlined by ClientMaxCapacity", True),
    ]


def test_who_is_cut_off_comes_first_and_those_not_listed_are_counted() -> None:
    cut = [
        ClosedConnectionEntry(client=f"web-{n}", transport="websocket", code="transport_closed")
        for n in range(6)
    ]
    told = policy_effect.summarise_effect(
        made(cut_off=cut, cut_off_in_all=120, acted_on=[decided("a", "disconnect")])
    )
    assert told.headline == "120 clients cut off, 1 client disconnected."
    assert (told.at_once[0].kind, told.at_once[0].count, told.at_once[0].hidden_count) == (
        "cut_off",
        120,
        115,
    )


def test_who_is_left_without_records_is_named_and_counts_as_an_act() -> None:
    lost = [
        LogSubscriberEntry(
            client=f"desk-{n}",
            subscription="s",
            topic="prices.a",
            subscription_kind="durable",
            connected=True,
            extent="all",
        )
        for n in range(2)
    ]
    part = LogSubscriberEntry(
        client="lake",
        subscription="s",
        topic=">",
        subscription_kind="bookmark",
        connected=True,
        extent="part",
    )
    told = policy_effect.summarise_effect(made(unrecorded=[*lost, part], unrecorded_in_all=9))
    assert told.headline == "8 clients without new records, 1 client with only a part of their records."
    assert [(line.kind, line.names, line.count, line.recorded_only) for line in told.at_once] == [
        ("unrecorded", ["desk-0", "desk-1"], 8, False),
        ("part_recorded", ["lake"], 1, False),
    ]
    assert told.at_once[0].sentence == (
        "durable subscription of prices.a gets no more records: the policy no longer journals it"
    )


def test_decisions_beyond_a_rollouts_allowance_are_told_apart_and_must_be_confirmed() -> None:
    held = [msgspec.structs.replace(decided(name, mode="shadow"), held_at=1) for name in ("b", "c", "d")]
    told = policy_effect.summarise_effect(made(acted_on=[decided("a"), *held]))
    assert (
        told.headline
        == "1 client offlined, 3 decisions exceed the allowance: Sluice withdraws the revision immediately."
    )
    assert [(line.kind, line.count, line.recorded_only) for line in told.at_once] == [
        ("offline", 1, False),
        ("held", 3, False),
    ]
    assert (
        told.at_once[1].sentence == "not offlined by ClientMaxCapacity: the rollout may make 1 decision here"
    )
    assert policy_effect.summarise_effect(made(acted_on=held)).severe


def test_clients_that_somebody_may_not_see_are_counted_and_must_be_confirmed() -> None:
    told = policy_effect.summarise_effect(
        made(acted_on=[], acted_on_in_all=3, enforced_in_all=2, cut_off_in_all=4)
    )
    assert [(line.kind, line.count, line.names, line.recorded_only) for line in told.at_once] == [
        ("cut_off", 4, [], False),
        ("act", 2, [], False),
        ("act", 1, [], True),
    ]
    assert told.severe


def test_a_change_without_an_effect_says_so() -> None:
    assert policy_effect.summarise_effect(made()).headline == "No client is disconnected or acted on."
