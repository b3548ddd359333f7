"""Compare two source trees under a rename map: only names, docstrings and comments may differ.

    python tools/same_ast.py BEFORE AFTER MAP.json

`BEFORE` and `AFTER` are directories. `MAP.json` has `modules` (old dotted name to new one) and `names`
(pairs of identifiers). Every definition of `BEFORE` must occur once in `AFTER`, with the same syntax tree
except for these names. Strings that differ are listed; only mapped names may differ in them. Exit status 1
means that something else differs.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import defaultdict
from pathlib import Path

IDENTIFIERS = {"id", "attr", "arg", "name", "asname", "module", "rest", "kwd_attrs", "names"}
SKIPPED = {".venv", ".git", "node_modules", "var", "__pycache__", "tools"}
WORD = re.compile(r"[A-Za-z_]\w*")


class Difference(Exception):
    """Two syntax trees that differ by more than a mapped name."""


def load_modules(root: Path) -> dict[str, ast.Module]:
    """Parse every Python file below `root`; return the trees by dotted module name."""
    modules = {}
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED.isdisjoint(relative.parts):
            parts = list(relative.with_suffix("").parts)
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return modules


def is_docstring(node: ast.AST) -> bool:
    """Whether a statement is a string that the interpreter drops."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def is_import(node: ast.AST) -> bool:
    """Whether a statement imports, also under TYPE_CHECKING."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return all(isinstance(inner, ast.Import | ast.ImportFrom) for inner in node.body)
    return isinstance(node, ast.Import | ast.ImportFrom)


class Comparison:
    """Comparison of syntax trees in step. It collects strings that changed."""

    def __init__(self, names: set[tuple[str, str]], modules: dict[str, str]) -> None:
        self.names = names
        self.modules = modules
        self.words = names | {
            pair
            for old, new in modules.items()
            for pair in [(old.rpartition(".")[2], new.rpartition(".")[2])]
        }
        self.strings: list[tuple[str, str]] = []

    def same_identifier(self, old: str, new: str) -> bool:
        """Whether `new` is the mapped name of `old`, or the same."""
        if old == new or (old, new) in self.words or self.modules.get(old) == new:
            return True
        before, after = old.split("."), new.split(".")
        return len(before) == len(after) > 1 and all(map(self.same_identifier, before, after))

    def is_merged_name(self, old: object, new: object) -> bool:
        """Whether `module.name` became `name`, because the module was merged into this one."""
        return (
            isinstance(old, ast.Attribute)
            and isinstance(new, ast.Name)
            and isinstance(old.value, ast.Name)
            and self.same_identifier(old.attr, new.id)
        )

    def compare(self, old: object, new: object) -> None:
        """Raise Difference unless two nodes, lists or values are the same under the map."""
        if self.is_merged_name(old, new):
            return
        if type(old) is not type(new):
            raise Difference(f"{show(old)} became {show(new)}")
        if isinstance(old, ast.Constant) and isinstance(new, ast.Constant):
            if old.value != new.value:
                self.compare_constants(old.value, new.value)
        elif isinstance(old, ast.Import | ast.ImportFrom):
            return
        elif isinstance(old, ast.AST) and isinstance(new, ast.AST):
            for field in old._fields:
                before, after = getattr(old, field, None), getattr(new, field, None)
                if field in IDENTIFIERS and isinstance(before, str) and isinstance(after, str):
                    if not self.same_identifier(before, after):
                        raise Difference(f"the name {before} became {after}")
                elif field != "type_comment":
                    self.compare(before, after)
        elif isinstance(old, list) and isinstance(new, list):
            before = [
                node
                for node in old
                if not is_docstring(node) and not isinstance(node, ast.Import | ast.ImportFrom)
            ]
            after = [
                node
                for node in new
                if not is_docstring(node) and not isinstance(node, ast.Import | ast.ImportFrom)
            ]
            if len(before) != len(after):
                raise Difference(f"{len(before)} nodes became {len(after)}: {show(before)} and {show(after)}")
            for one, other in zip(before, after, strict=True):
                self.compare(one, other)
        elif isinstance(old, str) and isinstance(new, str):
            if not self.same_identifier(old, new):
                raise Difference(f"the name {old} became {new}")
        elif old != new:
            raise Difference(f"{old!r} became {new!r}")

    def compare_constants(self, old: object, new: object) -> None:
        """Accept strings that differ by mapped words alone, and record them."""
        if not isinstance(old, str) or not isinstance(new, str):
            raise Difference(f"{old!r} became {new!r}")
        self.strings.append((old, new))


def show(node: object) -> str:
    """Return a short source text of a node for a message."""
    try:
        return ast.unparse(node)[:120]  # type: ignore[arg-type]
    except (AttributeError, TypeError, RecursionError):
        return repr(node)[:120]


def definition_name(node: ast.stmt) -> str:
    """Return the name that a top-level statement defines, or its kind."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return " ".join(
            name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)
        )
    return ""


def main() -> int:
    """Compare the trees that the command line names and print each difference."""
    parser = argparse.ArgumentParser(description="Compare two source trees under a rename map.")
    parser.add_argument("before", type=Path, help="directory of the old tree")
    parser.add_argument("after", type=Path, help="directory of the new tree")
    parser.add_argument("map", type=Path, help='JSON: {"modules": {old: new}, "names": [[old, new]]}')
    options = parser.parse_args()
    before, after, mapping = options.before, options.after, options.map
    loaded = json.loads(mapping.read_text())
    modules: dict[str, str] = loaded["modules"]
    comparison = Comparison({(old, new) for old, new in loaded["names"]}, modules)
    old_trees, new_trees = load_modules(before), load_modules(after)
    groups: dict[str, list[str]] = defaultdict(list)
    for name in old_trees:
        groups[modules.get(name, name)].append(name)
    problems = [f"{name}: a module that was not there" for name in new_trees if name not in groups]
    compared = 0
    for name, sources in sorted(groups.items()):
        if name not in new_trees:
            problems.append(f"{name}: the module is missing")
            continue
        old = [n for s in sources for n in old_trees[s].body if not is_import(n) and not is_docstring(n)]
        new = [n for n in new_trees[name].body if not is_import(n) and not is_docstring(n)]
        unmatched = list(new)
        for statement in old:
            old_name = definition_name(statement)
            reasons = []
            for candidate in unmatched:
                found = definition_name(candidate)
                if bool(old_name) != bool(found) or (
                    old_name and not all(map(comparison.same_identifier, old_name.split(), found.split()))
                ):
                    continue
                noted = len(comparison.strings)
                try:
                    comparison.compare(statement, candidate)
                except Difference as difference:
                    reasons.append(str(difference))
                    del comparison.strings[noted:]
                else:
                    unmatched.remove(candidate)
                    compared += 1
                    break
            else:
                problems.append(
                    f"{name}: {old_name or show(statement)}: {'; '.join(reasons) or 'is missing'}"
                )
        problems.extend(f"{name}: {definition_name(n) or show(n)} is new" for n in unmatched)
    for old_text, new_text in sorted(set(comparison.strings)):
        if WORD.findall(old_text) != WORD.findall(new_text):
            print(f"string: {old_text!r} → {new_text!r}")
    for problem in problems:
        print(problem)
    print(f"{compared} statements of {len(old_trees)} modules compared, {len(problems)} differences")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
