"""tools/same_ast.py: a rename changes names, docstrings and comments alone, and anything else is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "same_ast.py"
BEFORE = '''"""A."""


class Told:
    def went(self, size: int) -> int:
        """Gone."""
        return size + 1
'''
RENAMED = '''"""A module."""


class Notice:
    def on_closed(self, size: int) -> int:
        """Record the end."""
        return size + 1  # why
'''
MAP = {"modules": {"a": "notice"}, "names": [["Told", "Notice"], ["went", "on_closed"]]}


def compare(tmp_path: Path, after: str) -> subprocess.CompletedProcess[str]:
    """Run the tool over a module before and after a change."""
    for directory, name, text in (("old", "a.py", BEFORE), ("new", "notice.py", after)):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / name).write_text(text)
    (tmp_path / "map.json").write_text(json.dumps(MAP))
    words = [tmp_path / "old", tmp_path / "new", tmp_path / "map.json"]
    return subprocess.run(
        [sys.executable, TOOL, *words], capture_output=True, text=True, check=False, timeout=60
    )


def test_mapped_names_docstrings_and_comments_may_differ(tmp_path: Path) -> None:
    found = compare(tmp_path, RENAMED)
    assert (found.returncode, found.stdout) == (0, "1 statements of 1 modules compared, 0 differences\n")


def test_a_changed_value_and_a_name_outside_the_map_are_differences(tmp_path: Path) -> None:
    found = compare(tmp_path, RENAMED.replace("+ 1", "+ 2").replace("size", "length"))
    assert found.returncode == 1 and "Told" in found.stdout and "the name size became length" in found.stdout
