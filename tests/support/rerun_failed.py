"""Run pytest, then run failed tests once more, alone: `python -m tests.support.rerun_failed ARGUMENTS`.

CI runs the tests this way.

A shared machine stops for seconds now and then, and one test in thousands that waits for a real process fails
for it. A test that also fails alone is a fault of the code. So are more than MAX_RERUNS failures. Tests that
pass alone are listed as UNSTEADY: they don't stop CI, but must be fixed. `make test` reruns nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MAX_RERUNS = 3
ROOT = Path(__file__).resolve().parents[2]
TESTS_FAILED = 1
"""Exit code of pytest when tests failed and nothing else went wrong."""


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Return pytest's exit code, or 0 if the failed tests pass alone."""
    before = last_failed(root)
    code = subprocess.call([sys.executable, "-m", "pytest", *arguments], cwd=root)
    failed = sorted(last_failed(root) - before)
    if code != TESTS_FAILED or not 0 < len(failed) <= MAX_RERUNS:
        return code
    print(f"\nA second look at {len(failed)}, alone:", *failed, sep="\n  ", flush=True)
    kept = [argument for argument in arguments if argument == "--database"]
    again = subprocess.call([sys.executable, "-m", "pytest", *failed, *kept], cwd=root)
    if again == 0:
        print("\nUNSTEADY, to be mended: failed beside others, passed alone", *failed, sep="\n  ", flush=True)
    return again


def last_failed(root: Path) -> set[str]:
    """Return the tests whose newest run failed, as pytest's cache lists them."""
    try:
        return set(json.loads((root / ".pytest_cache/v/cache/lastfailed").read_text()))
    except FileNotFoundError:
        return set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
