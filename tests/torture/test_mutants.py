"""Mutants: what is made of a module, and that the list of those which change nothing is about mutants that there are."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.torture.mutants import EQUIVALENT, chosen, equivalent, mutants, names
from tests.torture.mutation import PLAN, ROOT

SOURCE = '''
"""A module."""
LIMIT = 3


def cut(values: list[int], most: int = LIMIT) -> list[int]:
    """The first of them."""
    if len(values) > most and most:
        log.info("cut", most=1)
        return values[: most + 1]
    return values
'''


def test_each_mistake_that_can_be_made_is_made_once() -> None:
    assert [mutant.name for mutant in mutants(SOURCE)] == [
        "cut: len(values) > most and most -> len(values) > most or most",
        "cut: len(values) > most -> len(values) >= most",
        "cut: return values[:most + 1] -> return None",
        "cut: most + 1 -> most - 1",
        "cut: 1 -> 2",
        "cut: return values -> return None",
    ]


def test_a_mutant_is_the_module_with_one_mistake() -> None:
    made = mutants(SOURCE)[1]
    assert made.line == 8
    assert "if len(values) >= most and most:" in made.source
    assert made.source.count(">") == 2, "nothing else is changed"
    assert len({mutant.source for mutant in mutants(SOURCE)}) == 6


def test_the_same_seed_chooses_the_same_ones_and_never_those_that_are_known() -> None:
    made = mutants(SOURCE)
    assert chosen(made, 3, 7, {}) == chosen(made, 3, 7, {})
    known = {mutant.name: "for a test" for mutant in made[1:]}
    assert chosen(made, 3, 7, known) == made[:1]


def test_each_that_is_called_equivalent_is_one_of_its_module_and_has_a_reason() -> None:
    listed = tomllib.loads(EQUIVALENT.read_text()).get("equivalent", [])
    for module in {one["module"] for one in listed}:
        assert module in PLAN
        known = equivalent(module)
        assert known.keys() <= names((ROOT / module).read_text()), "it isn't there any more"
        assert all(len(reason) > 10 for reason in known.values())


def test_the_tests_of_each_module_are_there() -> None:
    for module, tests in PLAN.items():
        assert (ROOT / module).is_file()
        assert [test for test in tests if not Path(ROOT / test).exists()] == [], module
