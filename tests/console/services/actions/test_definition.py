from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.errors import OperatorError
from console.services.actions import catalogue, conditions, triggers
from console.services.actions.definition import check_steps, check_triggers, is_destructive, locks_needed
from console.services.actions.options import check_options
from console.services.actions.steps import STEPS
from console.services.actions.triggers import TriggerEvent, has_crossed, matches_event

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def test_every_step_of_the_catalogue_can_be_carried_out() -> None:
    assert set(STEPS) == set(catalogue.KINDS)


@pytest.mark.parametrize("table", [triggers.KINDS, conditions.KINDS, catalogue.KINDS])
def test_every_kind_option_and_variable_stands_in_the_documents(table: dict[str, Any]) -> None:
    text = (Path(__file__).parents[4] / "docs" / "actions.md").read_text(encoding="utf-8")
    for kind in table.values():
        assert f"`{kind.name}`" in text
        assert all(f"`{option.name}`" in text for option in kind.options), kind.name
        assert all(f"`{name}`" in text for name in kind.gives), kind.name


def test_the_documents_example_is_an_action() -> None:
    text = (Path(__file__).parents[4] / "docs" / "actions.md").read_text(encoding="utf-8")
    example = json.loads(text.split("```json\n")[1].split("```")[0])
    assert len(check_triggers(example["when"])) == 2
    assert len(check_steps(example["steps"])) == 4


def test_no_step_runs_a_command() -> None:
    assert not any(
        word in name for name in catalogue.KINDS for word in ("command", "shell", "system", "script")
    )


def test_a_definition_is_kept_with_its_defaults() -> None:
    assert check_triggers([{"on": "schedule", "every": " Saturday at 00:30 "}]) == [
        {"on": "schedule", "every": "Saturday at 00:30"}
    ]
    made = check_steps([{"if": "file_system", "above": 90}, {"do": "truncate"}])
    assert made == [
        {"if": "file_system", "place": "journal", "above": "90"},
        {"do": "truncate", "what": "both", "age": "7d"},
    ]
    assert locks_needed(made) == {"truncate"}
    assert is_destructive(made)
    assert not is_destructive(check_steps([{"do": "archive", "age": "7d"}]))


@pytest.mark.parametrize(
    "steps",
    [
        "archive",
        [],
        [{"if": "client", "client": "x*"}],
        [{"do": "run_command", "command": "rm -rf /"}],
        [{"do": "archive"}],
        [{"do": "archive", "age": "soon"}],
        [{"do": "archive", "age": "7d", "force": "yes"}],
        [{"do": "truncate", "what": "audit"}],
        [{"do": "truncate", "what": "{{WHAT}}"}],
        [{"do": "archive", "age": ["7d"]}],
        [{"do": "archive", "age": True}],
        [["do"]],
        [{"if": "expression", "expression": "/x >"}, {"do": "shut_down"}],
        [{"do": "webhook", "url": "http://elsewhere.example/"}],
        [{"do": "shut_down"}] * 51,
        [{"do": "publish", "topic": "a", "data": "x" * 10_001}],
    ],
)
def test_what_cannot_be_an_action_is_refused_by_part(steps: Any) -> None:
    with pytest.raises(OperatorError) as refused:
        check_steps(steps)
    assert refused.value.code == "bad_action"
    assert str(refused.value.details["part"]).startswith("steps")


@given(json_values)
def test_any_json_is_a_definition_or_a_named_error(given_value: Any) -> None:
    for check in (check_steps, check_triggers):
        try:
            made = check(given_value)
        except OperatorError as refused:
            assert refused.code == "bad_action"
        else:
            assert check(made) == made


@pytest.mark.parametrize("table", [triggers.KINDS, conditions.KINDS, catalogue.KINDS])
def test_no_option_is_named_like_the_word_before_its_kind(table: dict[str, Any]) -> None:
    assert not any(option.name in ("on", "if", "do") for kind in table.values() for option in kind.options)


def test_an_option_with_a_variable_is_checked_when_it_is_known() -> None:
    (step,) = check_steps([{"do": "archive", "age": "{{AGE}}"}])
    assert step["age"] == "{{AGE}}"
    with pytest.raises(OperatorError, match="not an age"):
        check_options(catalogue.KINDS["archive"], {"age": "soon"}, "archive", expanded=True)


@pytest.mark.parametrize(
    ("trigger", "event", "expected"),
    [
        ({"on": "logon", "client": "risk-*"}, TriggerEvent("logon", {"AMPS_CLIENT_NAME": "risk-7"}), True),
        ({"on": "logon", "client": "risk-*"}, TriggerEvent("logon", {"AMPS_CLIENT_NAME": "desk-7"}), False),
        ({"on": "logon", "client": ""}, TriggerEvent("connect", {"AMPS_CLIENT_NAME": "risk-7"}), False),
        (
            {"on": "logon", "client": "~risk-[0-9]"},
            TriggerEvent("logon", {"AMPS_CLIENT_NAME": "risk-7"}),
            True,
        ),
        (
            {"on": "subscribe", "topic": "flights.>", "client": ""},
            TriggerEvent("subscribe", {"AMPS_TOPIC": "flights.AA"}),
            True,
        ),
        (
            {"on": "subscribe", "topic": "flights.>", "client": ""},
            TriggerEvent("subscribe", {"AMPS_TOPIC": "trains.AA"}),
            False,
        ),
        (
            {"on": "publish", "topic": "a", "filter": "/x > 1", "client": ""},
            TriggerEvent("publish", {}, {"topic": "a", "filter": "/x > 1"}),
            True,
        ),
        (
            {"on": "publish", "topic": "a", "filter": "/x > 1", "client": ""},
            TriggerEvent("publish", {}, {"topic": "a", "filter": ""}),
            False,
        ),
        (
            {"on": "decision", "client": "", "action": "offline"},
            TriggerEvent("decision", {"SLUICE_ACTION": "disconnect"}),
            False,
        ),
        ({"on": "event", "name": "full"}, TriggerEvent("event", {"SLUICE_EVENT": "full"}), True),
        ({"on": "schedule", "every": "4h"}, TriggerEvent("startup"), False),
    ],
)
def test_which_events_a_trigger_is_for(trigger: dict[str, str], event: TriggerEvent, expected: bool) -> None:
    assert matches_event(trigger, event) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("/AMPS_DATA_LENGTH > 20", False),
        ("/AMPS_DATA_LENGTH > 9", True),
        ("/DATA/price > 100", True),
        ("/NOBODY IS NULL", True),
        ("/AMPS_CLIENT_NAME LIKE '^risk'", True),
    ],
)
def test_an_expression_reads_the_variables_and_the_message(expression: str, expected: bool) -> None:
    variables = {"AMPS_CLIENT_NAME": "risk-1", "AMPS_DATA": '{"price": 120.5}', "AMPS_DATA_LENGTH": "16"}
    assert (
        conditions.is_condition_met("expression", {"expression": expression}, variables, lambda place: 0.0)
        is expected
    )


def test_conditions_of_file_systems_clients_and_topics() -> None:
    assert conditions.is_condition_met(
        "file_system", {"place": "spool", "above": "85"}, {}, lambda place: 85.1
    )
    assert not conditions.is_condition_met(
        "file_system", {"place": "spool", "above": "85"}, {}, lambda place: 85.0
    )
    assert conditions.is_condition_met(
        "client", {"client": "risk-?"}, {"AMPS_CLIENT_NAME": "risk-1"}, lambda place: 0
    )
    assert not conditions.is_condition_met(
        "topic", {"topic": "a.*"}, {"AMPS_TOPIC": "a.b.c"}, lambda place: 0
    )


@given(st.lists(st.floats(0, 100), max_size=50), st.floats(1, 99))
def test_a_file_system_fires_once_for_each_time_it_fills_up(values: list[float], limit: float) -> None:
    above, fired = False, 0
    for used in values:
        fires_now, above_now = has_crossed(used, limit, above)
        assert not (fires_now and above)
        assert above_now or used <= limit
        fired, above = fired + fires_now, above_now
    assert fired <= sum(used > limit for used in values)
    assert (fired > 0) == any(used > limit for used in values)
