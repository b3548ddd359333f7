"""The `laws` runner: the suite repeats fixed examples, and `make torture` runs many more by a seed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.torture import laws

RARE = """
from hypothesis import given, settings, strategies as st

@settings(max_examples=2)
@given(st.integers(0, 300))
def test_rare(n: int) -> None:
    assert n != 222

@given(st.booleans())
def test_two(yes: bool) -> None: ...

def test_no_law() -> None:
    assert False
"""


def examples() -> list[int]:
    got = []

    @given(st.integers())
    def law(number: int) -> None:
        got.append(number)

    law()
    return got


def test_a_law_has_the_same_examples_whatever_was_imported_before(tmp_path: Path) -> None:
    before = examples()
    (tmp_path / "more.py").write_text(f"MORE = {[1_000_003 * n for n in range(300)]}")
    spec = importlib.util.spec_from_file_location("more", tmp_path / "more.py")
    assert spec is not None and spec.loader is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(laws.sys.modules, "more", importlib.util.module_from_spec(spec))
        spec.loader.exec_module(laws.sys.modules["more"])
        assert examples() == before
    assert len(set(before)) > 50


def test_what_a_few_examples_do_not_show_many_do(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_rare.py").write_text(RARE)
    assert laws.main([str(tmp_path)], seed=7, minutes=1, times=200) == 1
    said = capfd.readouterr().out
    assert "test_rare" in said and "FAILED" in said and "n=222" in said and "@reproduce_failure" in said
    assert "test_two: 2 examples, 0.0 times its own: no more were found" in said
    assert "again: make torture ARGS='--only laws --seed 7 --times 200 --modules " in said
    assert "1 failed, 1 passed, 1 deselected" in said
