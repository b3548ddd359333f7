"""Runner of all Hypothesis tests with many more examples, from a seed that is printed.

`make test` repeats fixed examples; `make torture` tries new ones each time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis.errors import Flaky, HypothesisException
from hypothesis.internal.detection import is_hypothesis_test

ROOT: Final = Path(__file__).parents[2]
NAME: Final = "tests.torture.laws"
TIMES, MINUTES = "SLUICE_LAWS_TIMES", "SLUICE_LAWS_MINUTES"
NO_LAW: Final = 5
"""pytest's exit code when it had nothing to run."""
_SETTINGS: Final = "_hypothesis_internal_use_settings"
"""Attribute with a test's Hypothesis settings, which its pytest plugin reads. A second `@settings` is
refused.
"""


@dataclass
class LawResult:
    """Result of one Hypothesis test."""

    own: int
    """Examples that `make test` tries of it."""
    most: int
    until: float
    """Monotonic time in seconds after which no test is run."""
    number: int = 0
    cut: bool = False
    failed: bool = False

    @property
    def sentence(self) -> str:
        """Return how many examples ran, and why it stopped."""
        said = f"{self.number:,} examples, {self.number / self.own:.1f} times its own"
        if self.failed:
            return f"{said}: FAILED"
        if self.cut:
            return f"{said}: its time was over"
        return said if self.number >= self.most else f"{said}: no more were found"


class LawPlugin:
    """A pytest plugin that multiplies the examples of Hypothesis tests."""

    def __init__(self, times: int, ends: float) -> None:
        self.times = times
        self.ends = ends
        self._own: dict[str, int] = {}
        self._begun = 0
        self._now: LawResult | None = None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Select the Hypothesis tests and increase their number of examples."""
        laws = {item: item.obj for item in items if is_hypothesis_test(getattr(item, "obj", None))}  # type: ignore[attr-defined]
        config.hook.pytest_deselected(items=[item for item in items if item not in laws])
        items[:] = laws
        self._own = {item.nodeid: getattr(test, _SETTINGS).max_examples for item, test in laws.items()}
        for test in {id(test): test for test in laws.values()}.values():
            own: settings = getattr(test, _SETTINGS)
            raised = settings(
                own,
                max_examples=own.max_examples * self.times,
                derandomize=False,
                database=None,
                print_blob=True,
            )
            setattr(test, _SETTINGS, raised)
            test.hypothesis.inner_test = self._counted(test.hypothesis.inner_test)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Give the test its share of the remaining time; slow tests get the time that quick ones leave."""
        began = time.monotonic()
        share = max(0.0, self.ends - began) / (len(self._own) - self._begun)
        self._begun += 1
        own = self._own[item.nodeid]
        self._now = tried = LawResult(own, own * self.times, began + share)
        try:
            yield
        except BaseException as problem:
            # Hypothesis reports an interrupted test as flaky if the test itself would have drawn more data.
            if not tried.cut or not isinstance(problem, (pytest.skip.Exception, Flaky)):
                raise
        finally:
            print(f"{item.nodeid}: {tried.sentence}", file=sys.__stdout__, flush=True)

    def _counted(self, inner: Callable[..., None]) -> Callable[..., None]:
        @wraps(inner)
        def run(*args: Any, **kwargs: Any) -> None:
            tried = self._now
            assert tried is not None
            # A failed test continues with shrinking; every test gets at least the examples of `make test`.
            if not tried.failed and tried.number >= tried.own and time.monotonic() > tried.until:
                tried.cut = True
                pytest.skip("its time is over")  # Hypothesis then draws no more examples
            try:
                inner(*args, **kwargs)
            except HypothesisException:
                raise  # Hypothesis requests another example
            except Exception:
                tried.failed = True
                raise
            tried.number += 1

        return run


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin if the environment asks for it."""
    if TIMES in os.environ:
        ends = time.monotonic() + 60 * float(os.environ[MINUTES])
        config.pluginmanager.register(LawPlugin(int(os.environ[TIMES]), ends))


def main(tests: list[str], seed: int, minutes: float, times: int) -> int:
    """Run the laws of these files or tests, or all; the exit code."""
    print(f"laws, seed {seed}, {times} times their examples, {minutes:g} minutes", flush=True)
    words = [
        "-q",
        "--no-header",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        "-p",
        NAME,
        f"--hypothesis-seed={seed}",
    ]
    code = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *(tests or ["tests"])],
        cwd=ROOT,
        env=os.environ | {TIMES: str(times), MINUTES: str(minutes)},
        check=False,
    ).returncode
    if code not in (0, NO_LAW):
        print(
            f"again: make torture ARGS='--only laws --seed {seed} --times {times} "
            "--modules <the test that failed>'"
        )
    return code
