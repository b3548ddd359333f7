"""The error code table is complete: it lists exactly the codes that the source raises and sends."""

from __future__ import annotations

import ast
import pickle
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from rest_framework import exceptions

from broker_core.config.rule_terms import DecisionReason
from broker_core.error_codes import CODES, UNKNOWN, ErrorAudience, ErrorCode, error_code_entry
from broker_core.errors import ClientError, OperatorError, UnknownErrorCodeWarning
from broker_core.protocols import replies
from broker_core.protocols.close_codes import (
    CLOSE_CODES,
    close_number,
    code_from_close_number,
    is_permanent,
    reconnect_after_ms,
)

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker_core", "api", "console", "pipeline", "sluice_spark", "demo")
CODE = re.compile(r"[a-z]+(_[a-z]+)*")
REPLIES = frozenset(
    {"ErrorReply", "DecisionNotice", "ClosingNotice", "SubscriptionCancelled", "CloseRequested"}
)
"""Replies with a code."""


@cache
def _trees() -> dict[str, ast.Module]:
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text())
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def _nodes(kind: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, kind):
                yield path, node


@cache
def _error_classes() -> frozenset[str]:
    """SluiceError and every class below it, however deep."""
    bases = {
        node.name: {ast.unparse(base).split(".")[-1] for base in node.bases}
        for _, node in _nodes(ast.ClassDef)
        if isinstance(node, ast.ClassDef)
    }
    known = {"SluiceError"}
    while grown := {name for name, above in bases.items() if above & known} - known:
        known |= grown
    return frozenset(known)


@cache
def _takers() -> dict[str, set[int]]:
    """Return functions with a string parameter `code`, with its position; `self` isn't counted."""
    takers: dict[str, set[int]] = defaultdict(set)
    for _, node in _nodes(ast.FunctionDef):
        assert isinstance(node, ast.FunctionDef)
        names = [one.arg for one in node.args.args if one.arg not in ("self", "cls")]
        for one in node.args.args:
            if one.arg == "code" and one.annotation is not None and "str" in ast.unparse(one.annotation):
                takers[node.name].add(names.index("code"))
    # Constructors are found as classes; `from_dict` reads what another process reported; much is called
    # `add`, and the one that
    # takes a code counts errors that were made elsewhere.
    return {name: places for name, places in takers.items() if name not in ("__init__", "from_dict", "add")}


def _argument(call: ast.Call, places: set[int]) -> list[ast.expr]:
    named = [one.value for one in call.keywords if one.arg == "code"]
    return named or [call.args[at] for at in places if at < len(call.args)]


def _texts(expression: ast.expr) -> list[str]:
    if isinstance(expression, ast.IfExp):
        return _texts(expression.body) + _texts(expression.orelse)
    return (
        [expression.value]
        if isinstance(expression, ast.Constant) and isinstance(expression.value, str)
        else []
    )


def _handed_on(node: ast.Call) -> list[ast.expr]:
    """Return the expressions for a code in calls of functions that take one."""
    return _argument(node, _takers().get(ast.unparse(node.func).split(".")[-1], set()))


def _made(node: ast.Call) -> list[ast.expr]:
    """The expressions for a code in a call that makes an error or a reply."""
    name = ast.unparse(node.func).split(".")[-1]
    if name in _error_classes() and "django" not in ast.unparse(node.func):
        return _argument(node, {0})
    if name in REPLIES and (node.keywords or not node.args):
        return _argument(node, set())
    return []


@cache
def _used() -> dict[str, list[str]]:
    """Codes of the source, and where."""
    used: dict[str, list[str]] = defaultdict(list)
    for path, node in _nodes(ast.Call):
        assert isinstance(node, ast.Call)
        for expression in (*_made(node), *_handed_on(node)):
            for text in _texts(expression):
                used[text].append(f"{path}:{node.lineno}")
    for path, node in _nodes(ast.Dict):
        assert isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "code":
                for text in _texts(value):
                    used[text].append(f"{path}:{node.lineno}")
    for path, node in _nodes(ast.Assign):
        assert isinstance(node, ast.Assign)
        if any(_is_code(target) for target in node.targets):
            for text in _texts(node.value):
                used[text].append(f"{path}:{node.lineno}")
    for reason in DecisionReason:
        used[reason.value].append("Reason")
    return used


def _is_code(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple):
        return False
    return ast.unparse(target) == "code"


def _rest_framework() -> Iterator[type[exceptions.APIException]]:
    yield exceptions.APIException
    for kind in exceptions.APIException.__subclasses__():
        if kind.__module__ == exceptions.__name__ and kind is not exceptions.ValidationError:
            yield kind


def test_every_code_of_the_source_is_in_the_table() -> None:
    missing = {code: places for code, places in _used().items() if code not in CODES}
    assert not missing


def test_every_code_of_the_table_is_in_the_source() -> None:
    other = {kind.default_code for kind in _rest_framework()}
    assert not set(CODES) - set(_used()) - other


def test_a_code_that_is_made_is_written_out_or_handed_on() -> None:
    """Otherwise the two tests above would miss it."""
    handed_on = re.compile(r"code|\w+(\.\w+)*\.code|\w+(\.\w+)*\.reason\.value|told\['code'\]")
    for path, node in _nodes(ast.Call):
        assert isinstance(node, ast.Call)
        for expression in _made(node):
            text = ast.unparse(expression)
            assert _texts(expression) or handed_on.fullmatch(text), f"{path}:{node.lineno}: {text}"


def test_error_audiences_match_their_raising_modules() -> None:
    """The client library's errors reach its application, the broker's ClientErrors a client, others an
    operator.
    """
    for path, node in _nodes(ast.Call):
        assert isinstance(node, ast.Call)
        name = ast.unparse(node.func).split(".")[-1]
        for code in (text for expression in _made(node) for text in _texts(expression)):
            entry = CODES[code]
            if path.startswith("broker_core/client/"):
                assert ErrorAudience.LIBRARY in entry.audience, (code, path)
            elif name == "ClientError" or name in REPLIES:
                assert ErrorAudience.CLIENT in entry.audience, (code, path)
            else:
                assert ErrorAudience.OPERATOR in entry.audience or entry.status is not None, (code, path)


@pytest.mark.parametrize("kind", list(_rest_framework()), ids=lambda kind: kind.__name__)
def test_error_codes_of_the_rest_framework_are_in_the_table(kind: type[exceptions.APIException]) -> None:
    assert CODES[kind.default_code].status == kind.status_code


@pytest.mark.parametrize(("code", "entry"), CODES.items(), ids=list(CODES))
def test_an_entry_says_what_is_needed(code: str, entry: ErrorCode) -> None:
    assert CODE.fullmatch(code)
    assert entry.meaning and not entry.meaning.endswith(".")
    assert entry.audience or entry.status is not None, "nobody is told"
    assert entry.close is None or ErrorAudience.CLIENT in entry.audience
    assert entry.status is None or entry.status >= 400
    assert entry.status != 503 or entry.retry_advice


def test_close_numbers_are_unique_private_and_found_both_ways() -> None:
    assert len(set(CLOSE_CODES.values())) == len(CLOSE_CODES)
    assert all(4000 <= number < 4999 for number in CLOSE_CODES.values())
    assert code_from_close_number(close_number("client_replaced")) == "client_replaced"
    assert close_number("from_a_newer_broker") == 4999 == UNKNOWN.close
    assert code_from_close_number(1000) is None is code_from_close_number(4999)


def test_replaced_clients_do_not_reconnect_and_slow_ones_do() -> None:
    assert is_permanent("client_replaced") and reconnect_after_ms("client_replaced") is None
    assert not is_permanent("slow_client_disk") and reconnect_after_ms("slow_client_disk") == 1_000
    assert not is_permanent("from_a_newer_broker") and not is_permanent("bad_filter")


def test_an_unknown_code_warns_and_the_error_is_there_all_the_same() -> None:
    with pytest.warns(UnknownErrorCodeWarning, match="no_such_code"):
        error = OperatorError("no_such_code", "It went wrong.")
    assert error.code == "no_such_code" and error_code_entry(error.code) is UNKNOWN


def test_a_code_of_a_newer_broker_is_taken_as_it_is(recwarn: pytest.WarningsRecorder) -> None:
    error = ClientError.from_dict("from_a_newer_broker", "It went wrong.", "Wait.", {"code": "x", "fix": "y"})
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, ClientError) and again.as_dict() == error.as_dict()
    assert again.details == {"code": "x", "fix": "y"} and str(again) == "from_a_newer_broker: It went wrong."
    assert not recwarn.list


def test_replies_with_a_code_are_classes_that_exist() -> None:
    """The checks above find them by name."""
    assert {name for name in REPLIES if not hasattr(replies, name)} == set()


NAMED = re.compile(
    r"\b(?:Client|Operator|Journal|Sluice)Error\s+((?:[a-z]+_[a-z_]+(?:,\s+(?:(?:and|or)\s+)?|\s+(?:and|or)\s+)?)+)"
)
"""An error and its codes in a docstring: `OperatorError bad_policy, outside_roots or too_many_drafts`."""


def test_codes_in_docstrings_are_codes_of_the_table() -> None:
    for path, node in _nodes(ast.Expr):
        assert isinstance(node, ast.Expr)
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for named in NAMED.findall(node.value.value):
                assert set(re.findall(r"[a-z]+_[a-z_]+", named)) <= set(CODES), f"{path}:{node.lineno}"
