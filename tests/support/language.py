"""Counts of names, docstrings and lines that a newcomer cannot read, for the ratchet in
tests/architecture.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("broker_core", "console", "api", "pipeline", "sluice_spark")
FRAMEWORK_CLASSES: Final = frozenset({"Command", "Meta"})
"""Classes that Django names: one in each module that needs it."""

WIDTH: Final = 110
"""Columns of a line of Python or of a template."""

_NAMES: Final = (
    "told asked who whom way ways deed deeds talk look looks left out other others like among "
    "earlier wouldbe seen said given gone held kept taken passed underway standing door anteroom "
    "guest chores roll place places happened part parts piece kind stretch turn turns use half near "
    "far outlet outcome doings owner keeps waits settles publishes follows serves scene leaves lump "
    "lumps farewell trail succession found mark marks known judged ruled waiting reading telling "
    "asking answering"
)
VAGUE_NAMES: Final = frozenset(_NAMES.split())
VAGUE_MODULES: Final = VAGUE_NAMES | {
    "by_hand",
    "bring_back",
    "last_words",
    "would_be",
    "bury",
    "near_end",
    "swaps",
}
_FUNCTIONS: Final = (
    "over begun taken told gone went went_live went_back done_with kept held said seen looked left "
    "passed given tell look not_stored stands goes rests"
)
VAGUE_FUNCTIONS: Final = frozenset(_FUNCTIONS.split())
RIDDLE: Final = re.compile(
    r"(It |It's |The same|All that|All of |What |Who |Whom |Whoever |Whose |Of |Those |That |So |As |Where |"
    r"From when|Up to |By what|One'?s? |One [a-z]+'s[.,]|An? [a-z]+'s[.,]|Nothing|Everything|Anything|Nobody|"
    r"Somebody|Is it|Left |Not )"
)
"""Openings of a docstring that cannot be understood without the code below it."""

WORD: Final = re.compile(r"[A-Za-z][\w'-]*")


class Module(NamedTuple):
    """A Python file with its path from the root, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """Return the top-level package of the file."""
        return self.path.partition("/")[0]


@cache
def load_modules() -> tuple[Module, ...]:
    """Parse every Python file of the packages but migrations."""
    return tuple(
        Module(str(path.relative_to(ROOT)), text := path.read_text(), ast.parse(text))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if "migrations" not in path.parts
    )


def definitions(module: Module, *types: type[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of these types, nested ones included."""
    return (node for node in ast.walk(module.tree) if isinstance(node, types))


def duplicate_classes() -> list[str]:
    """List public class names that stand more than once in a top-level package."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module in load_modules():
        for node in definitions(module, ast.ClassDef):
            assert isinstance(node, ast.ClassDef)
            if not node.name.startswith("_") and node.name not in FRAMEWORK_CLASSES:
                places[module.package, node.name].append(module.path)
    return [f"{name}: {', '.join(paths)}" for (_, name), paths in sorted(places.items()) if len(paths) > 1]


def vague_names() -> list[str]:
    """List classes and modules that are named by a participle, a pronoun or an everyday word."""
    found = [module.path for module in load_modules() if Path(module.path).stem in VAGUE_MODULES]
    for module in load_modules():
        for node in definitions(module, ast.ClassDef):
            assert isinstance(node, ast.ClassDef)
            if node.name.lower().strip("_") in VAGUE_NAMES:
                found.append(f"{module.path}:{node.lineno} {node.name}")
    return found


def vague_functions() -> list[str]:
    """List public functions and methods that are named by a bare participle or adverb."""
    return [
        f"{module.path}:{node.lineno} {node.name}"
        for module in load_modules()
        for node in definitions(module, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in VAGUE_FUNCTIONS
    ]


def riddle_docstrings() -> list[str]:
    """List docstrings whose first line means nothing without the code, or has fewer than three words."""
    found = []
    for module in load_modules():
        for node in definitions(module, ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef):
            assert isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            text = (ast.get_docstring(node) or "").strip()
            if text and (RIDDLE.match(text) or len(WORD.findall(text)) < 3):
                found.append(f"{module.path}:{getattr(node, 'lineno', 1)} {text.splitlines()[0]}")
    return found


def wide_lines() -> list[str]:
    """List lines of Python and of templates that are wider than `WIDTH` columns."""
    templates = sorted((ROOT / "templates").rglob("*.html"))
    texts = [(module.path, module.text) for module in load_modules()]
    texts += [(str(path.relative_to(ROOT)), path.read_text()) for path in templates]
    return [
        f"{path}:{number}"
        for path, text in texts
        for number, line in enumerate(text.split("\n"), 1)
        if len(line) > WIDTH
    ]
