"""Compiler of filters: turns a tree into nested closures, once per filter. Equal filters share one object.

Closures are built from validated nodes only. No source code is generated, so no input is ever executed. The
common condition, a field compared with a literal of its own type, is evaluated within its closure. Others
call `filters.values`, which defines comparison and conversion.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any
from weakref import WeakValueDictionary

from broker_core.filters import nodes, values
from broker_core.filters.index_keys import Guard, required_key
from broker_core.filters.parser import compile_pattern, parse
from broker_core.filters.selectors import MARK, compile_selector, split_filter_text
from broker_core.filters.selectors.parser import HeaderTest
from broker_core.filters.tokens import filter_error
from broker_core.filters.values import Verdict, compile_path

Getter = Callable[[Any], Any]
Test = Callable[[Any], Verdict]

_PATTERN_MARKS = frozenset("\\.^$*+?{}[]|()")


class Filter:
    """Compiled filter. Two live filters with the same normal form are one object.

    A filter can test the body (`test`), the headers (`header_test`), or both; both must be TRUE. None tests
    nothing. The body test is compiled at its first use: of a client's thousand filters that an index finds by
    their guards, few are ever evaluated. The guard is computed on demand too, because it only helps with many
    filters on one topic.
    """

    __slots__ = ("__weakref__", "_form", "_make_guard", "_make_test", "_test", "header_test")

    def __init__(
        self,
        form: str | nodes.Node,
        make_test: Callable[[], Test | None] | None,
        header_test: HeaderTest | None = None,
        make_guard: Callable[[], Guard | None] | None = None,
    ) -> None:
        """Create a filter.

        Args:
            form: Normal form as text, or the tree from which the text is written.
            make_test: Compiles the test of a decoded body. None: the body is not tested.
            header_test: Test of the headers. None: headers are not tested.
            make_guard: Computes the guard. None: there is none.
        """
        self._form = form
        self._make_test = make_test
        self._test: Test | None = None
        self.header_test = header_test
        self._make_guard = make_guard

    @property
    def guard(self) -> Guard | None:
        """Condition by which an index finds this filter among many.

        None: the filter must always be evaluated.
        """
        return self._make_guard() if self._make_guard is not None else None

    @property
    def text(self) -> str:
        """Normal form of the filter.

        It is written at the first access, because most filters never need it.
        """
        if not isinstance(self._form, str):
            self._form = nodes.format_node(self._form)
        return self._form

    @property
    def test(self) -> Test | None:
        """Test of a decoded body. None: the body is not tested."""
        make = self._make_test
        if make is not None:  # two threads may compile at the same time: their results are equal
            self._test = make()
            self._make_test = None
        return self._test

    def matches_object(self, message: Any) -> bool:
        """Return whether a decoded message matches: the expression is TRUE, neither FALSE nor unknown."""
        test = self.test
        return test is None or test(message) is True

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"


_live_filters: WeakValueDictionary[str | nodes.Node, Filter] = WeakValueDictionary()


@lru_cache(maxsize=512)
def compile_filter(text: str) -> Filter:
    """Compile a filter or a selector.

    Raises:
        ClientError: `bad_filter` or `bad_selector`, with `details["column"]`, counted from 1.
    """
    if not text.isascii():
        _refuse_surrogates(text)
    if text.startswith(MARK):
        return _compile_selector_filter(*split_filter_text(text))
    tree = parse(text)
    return _shared_filter(
        tree, lambda: Filter(tree, lambda: compile_condition(tree), make_guard=lambda: required_key(tree))
    )


def _compile_selector_filter(selector: str, body_filter: str) -> Filter:
    header_test = compile_selector(selector)
    body = compile_filter(body_filter) if body_filter else None
    text = f"{MARK}{selector}" + (f"\n{body.text}" if body is not None else "")
    if body is None:
        return _shared_filter(text, lambda: Filter(text, None, header_test))
    return _shared_filter(text, lambda: Filter(text, lambda: body.test, header_test, lambda: body.guard))


def all_filters(*filters: Filter | None) -> Filter | None:
    """Return the filter that matches messages that all of these match. None matches everything."""
    return _combine_filters([part for part in filters if part is not None], "AND", False)


def any_filter(*filters: Filter | None) -> Filter | None:
    """Return the filter that matches messages that any of these matches. None matches everything."""
    parts = [part for part in filters if part is not None]
    return _combine_filters(parts, "OR", True) if len(parts) == len(filters) else None


def _combine_filters(filters: list[Filter], word: str, decisive: bool) -> Filter | None:
    """Combine filters by joining their compiled tests.

    The texts are not joined and parsed again: the text of one filter could then change the meaning of
    another.
    """
    parts = list(dict.fromkeys(filters))
    if len(parts) < 2:
        return parts[0] if parts else None
    text = f" {word} ".join(f"({part.text})" for part in parts)

    def test() -> Test | None:
        tests = [part.test for part in parts if part.test is not None]
        return _join_conditions(tests, decisive) if tests else None

    # Only filters of entitlements are joined by OR. They test bodies only; selectors belong to subscribers.
    of_headers = [part.header_test for part in parts if part.header_test is not None]

    def guard() -> Guard | None:
        return next((part.guard for part in parts if part.guard is not None), None)

    return _shared_filter(
        text,
        lambda: Filter(
            text,
            test,
            _join_conditions(of_headers, decisive) if of_headers else None,
            None if decisive else guard,
        ),
    )


def _shared_filter(normal: str | nodes.Node, make: Callable[[], Filter]) -> Filter:
    """Return the live filter with this normal form, or create it."""
    known = _live_filters.get(normal)
    return _live_filters.setdefault(normal, make()) if known is None else known


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise filter_error("Half a surrogate pair isn't a character", error.start + 1) from None


# ------------------------------------------------------------------------------------------------------
# Values.


def compile_value(node: nodes.Node) -> Getter:
    """Compile an expression to a function from a decoded message to its value."""
    match node:
        case nodes.FieldPath(steps):
            return compile_path(steps)
        case nodes.Constant() | nodes.UnaryMinus(nodes.Constant()):
            value = _constant_value(node)
            return lambda message: value
        case nodes.UnaryMinus(part):
            return _compile_arithmetic(nodes.Constant(0), (("-", part),))
        case nodes.Arithmetic(first, rest):
            return _compile_arithmetic(first, rest)
        case _:
            return compile_condition(node)


def _constant_value(node: nodes.Node) -> nodes.Literal:
    if isinstance(node, nodes.UnaryMinus):
        return values.calculate("-", 0, values.to_number(_constant_value(node.part)))
    assert isinstance(node, nodes.Constant)
    return node.value


def _is_constant(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Constant) or (
        isinstance(node, nodes.UnaryMinus) and isinstance(node.part, nodes.Constant)
    )


def _compile_arithmetic(first: nodes.Node, operands: tuple[tuple[str, nodes.Node], ...]) -> Getter:
    start = compile_value(first)
    steps = [(sign, compile_value(part)) for sign, part in operands]
    to_number, calculate = values.to_number, values.calculate

    def get(message: Any) -> Any:
        value = to_number(start(message))
        for sign, part in steps:
            value = calculate(sign, value, to_number(part(message)))
        return value

    return get


# -------------------------------------------------------------------------------------------------------
# Conditions.


def compile_condition(node: nodes.Node) -> Test:
    """Compile a condition to a function from a decoded message to TRUE, FALSE or unknown (None)."""
    match node:
        case nodes.And(parts):
            return _join_conditions([compile_condition(part) for part in parts], False)
        case nodes.Or(parts):
            return _join_conditions([compile_condition(part) for part in parts], True)
        case nodes.Not(part):
            return _negate(compile_condition(part))
        case nodes.Comparison(sign, left, right):
            return _compile_comparison(sign, left, right)
        case nodes.InList(value, items):
            return _compile_in(compile_value(value), items)
        case nodes.Between(value, low, high):
            return _join_conditions(
                [_compile_comparison(">=", value, low), _compile_comparison("<=", value, high)], False
            )
        case nodes.LikeCondition(value, pattern):
            return _compile_like(compile_value(value), _compile_pattern(pattern))
        case nodes.IsNull(value):
            get = compile_value(value)
            return lambda message: values.to_scalar(get(message)) is None
        case _:
            get = compile_value(node)
            return lambda message: values.to_condition(get(message))


def _join_conditions(parts: list[Test], decisive: bool) -> Test:
    """Return the test that combines parts by AND (`decisive` False) or OR (`decisive` True).

    The result is `decisive` if any part returns it, its opposite if all parts return that, and unknown
    otherwise.
    """

    def test(message: Any) -> Verdict:
        verdict: Verdict = not decisive
        for part in parts:
            found = part(message)
            if found is decisive:
                return found
            if found is None:
                verdict = None
        return verdict

    return test


def _negate(part: Test) -> Test:
    def test(message: Any) -> Verdict:
        found = part(message)
        return None if found is None else not found

    return test


def _compile_comparison(sign: str, left: nodes.Node, right: nodes.Node) -> Test:
    """Return the test of a comparison, with fast paths for a field against a literal."""
    if _is_constant(left) and not _is_constant(right):
        sign, left, right = nodes.MIRRORED[sign], right, left
    get, compare = compile_value(left), partial(values.compare, sign)
    if not _is_constant(right):
        get_right = compile_value(right)
        return lambda message: compare(get(message), get_right(message))
    literal, direct = _constant_value(right), values.OPERATORS[sign]
    if isinstance(literal, str) and literal:

        def text_test(message: Any) -> Verdict:
            value = get(message)
            if type(value) is str:
                return direct(value, literal) if value else None
            return None if value is None else compare(value, literal)

        return text_test

    if literal is None or isinstance(literal, str | bool):
        return lambda message: compare(get(message), literal)

    def number_test(message: Any) -> Verdict:
        value = get(message)
        if type(value) is int or type(value) is float:
            return direct(value, literal)
        return None if value is None else compare(value, literal)

    return number_test


def _compile_in(get: Getter, items: tuple[nodes.Node, ...]) -> Test:
    """Return the test of an IN list, with a fast path for a list of texts."""
    if not all(map(_is_constant, items)):
        return _compile_in_values(get, [compile_value(item) for item in items])
    literals = [_constant_value(item) for item in items]
    texts = frozenset(literal for literal in literals if isinstance(literal, str) and literal)
    if len(texts) != len(set(literals)):
        texts = frozenset()

    def test(message: Any) -> Verdict:
        value = get(message)
        if texts and type(value) is str and value:
            return value in texts
        return values.compare_arrays(
            "=", values.flatten_array(value) if type(value) is list else (value,), literals
        )

    return test


def _compile_in_values(get: Getter, items: list[Getter]) -> Test:
    def test(message: Any) -> Verdict:
        value = get(message)
        found: list[Any] = []
        for item in items:
            one = item(message)
            if type(one) is list:
                found += values.flatten_array(one) or (None,)
            else:
                found.append(one)
        return values.compare_arrays(
            "=", values.flatten_array(value) if type(value) is list else (value,), found
        )

    return test


def _compile_like(get: Getter, find: Callable[[str], bool]) -> Test:
    def one(value: Any) -> Verdict:
        text = values.to_text(value)
        return None if text is None else find(text)

    def test(message: Any) -> Verdict:
        value = get(message)
        if type(value) is str:
            return find(value) if value else None
        if type(value) is list:
            return values.or_verdicts([one(element) for element in values.flatten_array(value)])
        return one(value)

    return test


def _compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return the search function of a LIKE pattern.

    A pattern without special characters, except ^ and $, is searched by str. That costs a tenth of a call to
    RE2.
    """
    starts, ends = pattern.startswith("^"), pattern.endswith("$")
    plain = pattern[starts : len(pattern) - ends]
    if _PATTERN_MARKS.isdisjoint(plain):
        if starts and ends:
            return lambda text: text == plain
        if starts:
            return lambda text: text.startswith(plain)
        return (lambda text: text.endswith(plain)) if ends else (lambda text: plain in text)
    search = compile_pattern(pattern).search
    return lambda text: search(text.encode(errors="replace")) is not None
