"""Generation of mutants, and the list of equivalent mutants, which must all exist."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.torture import mutation
from tests.torture.forks import HUNG, KILLED, SURVIVED, UNFIT
from tests.torture.mutants import EQUIVALENT, chosen, equivalent, mutants, names
from tests.torture.mutation import PLAN, ROOT, CheckoutCopy, ForkRunner

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
    assert made.source.count(">") == 2, "the rest of the source is unchanged"
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
        assert known.keys() <= names((ROOT / module).read_text()), "a listed mutant no longer exists"
        assert all(len(reason) > 10 for reason in known.values())


def test_the_tests_of_each_module_are_there() -> None:
    for module, tests in PLAN.items():
        assert (ROOT / module).is_file()
        assert [test for test in tests if not Path(ROOT / test).exists()] == [], module


def test_a_fork_has_the_mistake_and_says_whether_a_test_found_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = (
        "def half(n: int) -> int:\n"
        "    return n // 2 + 0 * sum(1 for _ in range(n)) + sum(0 for _ in range(n))\n"
    )
    for place in (tmp_path / "right", tmp_path / "tree"):
        place.mkdir()
        (place / "half.py").write_text(right)
    test = "from half import half\n\ndef test_half() -> None:\n    assert half(4) == 2\n"
    (tmp_path / "tree" / "test_half.py").write_text(test)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path / 'tree'}")
    monkeypatch.setattr(mutation, "ROOT", tmp_path / "right")
    monkeypatch.setitem(PLAN, "half.py", ("test_half.py",))
    forks = ForkRunner(CheckoutCopy(tmp_path / "tree"), "half.py")
    forks.collected()
    for old, new, outcome in (
        ("", "", SURVIVED),
        ("2 +", "3 +", KILLED),
        ("0 *", "1 *", KILLED),
        ("sum(1", "sum(2", SURVIVED),
        ("return n", "__import__('os')._exit(0); return n", KILLED),
        ("half(n", "other(n", UNFIT),
        ("", "", SURVIVED),
    ):
        assert forks.outcome(right.replace(old, new, 1), 60) == outcome, new
        assert (tmp_path / "tree" / "half.py").read_text() == right
    assert forks.outcome(right.replace("return n", "while n: pass\n    return n"), 1) == HUNG
    forks.close()
