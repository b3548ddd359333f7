"""Small mistakes put into a module, one at a time.

A test that runs through code without checking it lets them pass.
"""

from __future__ import annotations

import ast
import random
import tomllib
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
_SAID = (ast.JoinedStr, ast.Import, ast.ImportFrom)
_DUMB = ("log.", "structlog.", "logging.")
"""Calls that do not affect data."""


class Mutant(NamedTuple):
    """A module with one mistake. `name` gives place and type, and does not change when lines move."""

    name: str
    line: int
    source: str
    """The whole module with it."""


class _MutationSite(NamedTuple):
    """A place in a syntax tree for one mistake, and its replacement."""

    name: str
    parent: ast.AST
    node: ast.AST
    made: ast.AST


def mutants(source: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of its lines."""
    tree = ast.parse(source)
    return [
        Mutant(one.name, getattr(one.node, "lineno", 0), _replaced(tree, one.parent, one.node, one.made))
        for one in _sites(tree)
    ]


def names(source: str) -> set[str]:
    """Return the names of all mutants of a module."""
    return {one.name for one in _sites(ast.parse(source))}


def _sites(tree: ast.AST) -> list[_MutationSite]:
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    found: list[_MutationSite] = []
    seen: Counter[str] = Counter()
    for node in _nodes(tree):
        where = _qualified(node, parents)
        for made in _mistakes(node, parents):
            name = f"{where}: {_one_line(node)} -> {_one_line(made)}"
            seen[name] += 1
            if seen[name] > 1:
                name += f" (no. {seen[name]})"
            found.append(_MutationSite(name, parents[node], node, made))
    return found


def chosen(made: list[Mutant], number: int, seed: int, known: dict[str, str]) -> list[Mutant]:
    """Return `number` random mutants, in no order, without those in `known` that change nothing."""
    left = [mutant for mutant in made if mutant.name not in known]
    return random.Random(seed).sample(left, min(number, len(left)))


def equivalent(module: str) -> dict[str, str]:
    """Return mutants of a module without observable effect, with the reason."""
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("equivalent", [])
    return {one["mutant"]: one["reason"] for one in listed if one["module"] == module}


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that may be mutated.

    These are nodes of function bodies, without annotations, decorators, docstrings and messages.
    """
    todo: list[tuple[ast.AST, bool]] = [(tree, False)]
    while todo:
        node, within = todo.pop()
        if within:
            yield node
        children: list[tuple[ast.AST, bool]] = []
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "args" if _is_function(node) else "-"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, _SAID) and not _is_text(child):
                    children.append((child, within or (_is_function(node) and name == "body")))
        todo += reversed(children)


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def _is_text(node: ast.AST) -> bool:
    """Return whether a node is a docstring or a log line."""
    if not isinstance(node, ast.Expr):
        return False
    return isinstance(node.value, ast.Constant) or ast.unparse(node).startswith(_DUMB)


def _mistakes(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    match node:
        case ast.Compare():
            for number, operator in enumerate(node.ops):
                if type(operator) in _COMPARE:
                    ops = list(node.ops)
                    ops[number] = _COMPARE[type(operator)]()
                    yield ast.Compare(node.left, ops, node.comparators)
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            yield ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
        case ast.AugAssign() if type(node.op) in _ARITHMETIC:
            yield ast.AugAssign(node.target, _ARITHMETIC[type(node.op)](), node.value)
            yield ast.Pass()
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
        case ast.Name() | ast.Attribute() | ast.Call() if _is_tested(node, parents[node]):
            yield ast.UnaryOp(ast.Not(), node)  # type: ignore[arg-type]
        case ast.Expr() | ast.Delete() | ast.Raise():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield ast.Pass()
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield ast.Return(ast.Constant(None))
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()


def _is_tested(node: ast.AST, parent: ast.AST) -> bool:
    """Return whether `node` is a plain condition of its parent. Comparisons have mutations of their own."""
    return isinstance(parent, (ast.If, ast.IfExp, ast.While)) and parent.test is node


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _qualified(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> str:
    names: list[str] = []
    while node in parents:
        node = parents[node]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append(node.name)
    return ".".join(reversed(names))


def _one_line(node: ast.AST) -> str:
    return " ".join(ast.unparse(ast.fix_missing_locations(deepcopy(node))).split())


def _replaced(tree: ast.AST, parent: ast.AST, node: ast.AST, made: ast.AST) -> str:
    """Return the source of the tree with one node replaced; the tree itself is unchanged."""
    for name, value in ast.iter_fields(parent):
        if value is node:
            setattr(parent, name, made)
            text = ast.unparse(ast.fix_missing_locations(tree))
            setattr(parent, name, node)
            return text
        if isinstance(value, list) and any(one is node for one in value):
            at = next(number for number, one in enumerate(value) if one is node)
            value[at] = made
            text = ast.unparse(ast.fix_missing_locations(tree))
            value[at] = node
            return text
    raise AssertionError("the node isn't below its parent")
