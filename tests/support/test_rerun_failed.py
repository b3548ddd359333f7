"""CI's rerun of failed tests: it names those that pass alone, and fails for the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rerun_failed import MAX_RERUNS, main

ONCE = """
from pathlib import Path
def test_fails_the_first_time():
    seen = Path(__file__).with_suffix(".seen")
    again = seen.exists()
    seen.touch()
    assert again
"""


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        (ONCE, 0, True),
        ("def test_fails():\n    assert False\n", 1, False),
        (
            "".join(
                ONCE.replace("time()", f"time_{n}()").replace(".seen", f".{n}") for n in range(MAX_RERUNS + 1)
            ),
            1,
            False,
        ),
        ("def test_passes():\n    pass\n", 0, False),
    ],
)
def test_what_passes_alone_is_named(
    text: str, code: int, named: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:django\n")
    (tmp_path / "test_it.py").write_text(text)
    assert main(["-q", "test_it.py"], tmp_path) == code
    assert ("UNSTEADY" in capfd.readouterr().out) == named
