"""Imports of the broker's modules: no import cycle, and packages that list their modules."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

import broker_core

ROOT = Path(broker_core.__file__).parent
LISTED = re.compile(r"^ *(\w+)  +\S", re.MULTILINE)
"""A line of a package's docstring that says what a module is for."""
BESIDE = re.compile(r"; (\w+): ")
"""A second module on such a line."""


def circle_of(package: str) -> list[str]:
    """Return modules that import each other in a cycle, in order; [] if there is none.

    Imports for typing count.
    """
    graph = grimp.build_graph(package, cache_dir=None, exclude_type_checking_imports=False)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def modules_of(package: Path) -> set[str]:
    """Return the modules and packages of a package."""
    return {
        path.stem
        for path in package.iterdir()
        if path.stem[:2] != "__" and (path.suffix == ".py" or (path / "__init__.py").exists())
    }


def listed_in(package: Path) -> set[str]:
    """The modules that a package's docstring lists; none when it has no list."""
    words = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    return {*LISTED.findall(words), *BESIDE.findall(words)} if LISTED.search(words) else set()


PACKAGES = sorted(path.parent for path in ROOT.rglob("__init__.py"))


def test_the_engine_has_no_import_circle() -> None:
    circle = circle_of("broker_core")
    assert not circle, "these modules import each other in a circle: " + " → ".join(circle)


@pytest.mark.parametrize(
    "head",
    ["from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    ", "def later():\n    ", ""],
    ids=["for typing", "in a function", "at the top"],
)
def test_a_circle_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str) -> None:
    package = tmp_path / "a_circle"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "above": "from a_circle import below",
        "below": head + "import a_circle.above",
    }.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert set(circle_of("a_circle")) == {"a_circle.above", "a_circle.below"}


@pytest.mark.parametrize(
    "package", [package for package in PACKAGES if listed_in(package)], ids=lambda package: package.name
)
def test_a_package_that_lists_its_modules_names_each(package: Path) -> None:
    listed, there = listed_in(package), modules_of(package)
    assert listed == there, (
        f"not listed: {sorted(there - listed)}; listed and not there: {sorted(listed - there)}"
    )


PROJECT = ROOT.parent
FILE = re.compile(r"(?<![\w./*{])((?:\w+/)*\w+\.py)\b")
"""A Python file that a docstring, a comment or a document names."""


def named_files(path: Path) -> set[str]:
    """Return the Python files of the project named in a source's docstrings and comments, or in a
    document.
    """
    text = path.read_text()
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        texts = [t.string for t in tokens if t.type == tokenize.COMMENT or t.string[:4].endswith('"""')]
        text = "\n".join(texts)
    return set(FILE.findall(text))


def test_files_that_docstrings_and_documents_name_exist() -> None:
    packages = ("broker_core", "console", "api", "pipeline", "sluice_spark")
    there = [
        f"/{path.relative_to(PROJECT)}"
        for package in (*packages, "tests", "bench", "demo", "packaging", "tools", "")
        for path in (PROJECT / package).glob("**/*.py" if package else "*.py")
    ]
    sources = [path for package in packages for path in sorted((PROJECT / package).rglob("*.py"))]
    for source in [*sources, *sorted((PROJECT / "docs").glob("*.md"))]:
        named = {name for name in named_files(source) if not name.startswith("var/")}  # an operator's own job
        missing = {name for name in named if not any(one.endswith(f"/{name}") for one in there)}
        assert not missing, f"{source.relative_to(PROJECT)} names {missing}"
