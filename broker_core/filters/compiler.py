"""From the tree to a tree of closures, once a filter; equal filters share one object.

Closures are built from validated nodes alone and no source is generated, so nothing that comes from outside
is ever executed. The common test, a field against a literal of its own type, is decided without leaving its
closure; anything else goes to `values`, where the rules stand.
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
    """A compiled filter. Two live filters with the same normal form are one object.

    What it tests of the body, of the headers, or of both must be TRUE; None tests nothing there. The test of the body is
    made when it is first asked for: of a client's thousand filters that are found by their guards few ever are. So is the
    guard, which is of use among many filters of one topic alone.
    """

    __slots__ = ("__weakref__", "_form", "_make_guard", "_make_test", "_test", "header_test")

    def __init__(
        self,
        form: str | nodes.Node,
        make_test: Callable[[], Test | None] | None,
        header_test: HeaderTest | None = None,
        make_guard: Callable[[], Guard | None] | None = None,
    ) -> None:
        self._form = form
        self._make_test = make_test
        self._test: Test | None = None
        self.header_test = header_test
        self._make_guard = make_guard

    @property
    def guard(self) -> Guard | None:
        """By what it is found among many; None when it must be tried."""
        return self._make_guard() if self._make_guard is not None else None

    @property
    def text(self) -> str:
        """Its normal form. Written when first asked for: most filters never are."""
        if not isinstance(self._form, str):
            self._form = nodes.format_node(self._form)
        return self._form

    @property
    def test(self) -> Test | None:
        """What it tests of a decoded body; None: nothing."""
        make = self._make_test
        if make is not None:  # perhaps in two threads at once: both make the same
            self._test = make()
            self._make_test = None
        return self._test

    def matches_object(self, message: Any) -> bool:
        """Whether a decoded message passes: the expression is TRUE, not FALSE and not unknown."""
        test = self.test
        return test is None or test(message) is True

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"


_live: WeakValueDictionary[str | nodes.Node, Filter] = WeakValueDictionary()


@lru_cache(maxsize=512)
def compile_filter(text: str) -> Filter:
    """The compiled filter. Raises ClientError bad_filter or bad_selector with details["column"], counted from 1."""
    if not text.isascii():
        _refuse_surrogates(text)
    if text.startswith(MARK):
        return _selector(*split_filter_text(text))
    tree = parse(text)
    return _shared(
        tree, lambda: Filter(tree, lambda: compile_condition(tree), make_guard=lambda: required_key(tree))
    )


def _selector(selector: str, body_filter: str) -> Filter:
    header_test = compile_selector(selector)
    body = compile_filter(body_filter) if body_filter else None
    text = f"{MARK}{selector}" + (f"\n{body.text}" if body is not None else "")
    if body is None:
        return _shared(text, lambda: Filter(text, None, header_test))
    return _shared(text, lambda: Filter(text, lambda: body.test, header_test, lambda: body.guard))


def all_filters(*filters: Filter | None) -> Filter | None:
    """The filter that passes what all of these pass; None passes everything."""
    return _filter_of([part for part in filters if part is not None], "AND", False)


def any_filter(*filters: Filter | None) -> Filter | None:
    """The filter that passes what one of these passes; None passes everything."""
    parts = [part for part in filters if part is not None]
    return _filter_of(parts, "OR", True) if len(parts) == len(filters) else None


def _filter_of(filters: list[Filter], word: str, decisive: bool) -> Filter | None:
    """The tests are joined, not the texts: what one of them says can't change what another one means."""
    parts = list(dict.fromkeys(filters))
    if len(parts) < 2:
        return parts[0] if parts else None
    text = f" {word} ".join(f"({part.text})" for part in parts)

    def test() -> Test | None:
        tests = [part.test for part in parts if part.test is not None]
        return _joined(tests, decisive) if tests else None

    # Joined by OR are entitlements' filters alone, which are of bodies: a selector is a subscriber's own.
    of_headers = [part.header_test for part in parts if part.header_test is not None]

    def guard() -> Guard | None:
        return next((part.guard for part in parts if part.guard is not None), None)

    return _shared(
        text,
        lambda: Filter(
            text,
            test,
            _joined(of_headers, decisive) if of_headers else None,
            None if decisive else guard,
        ),
    )


def _shared(normal: str | nodes.Node, make: Callable[[], Filter]) -> Filter:
    """The filter of this form; it is made when there is none that lives."""
    known = _live.get(normal)
    return _live.setdefault(normal, make()) if known is None else known


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise filter_error("Half a surrogate pair isn't a character", error.start + 1) from None


# ------------------------------------------------------------------------------------------------------
# values


def compile_value(node: nodes.Node) -> Getter:
    """A function from a message to the value of an expression."""
    match node:
        case nodes.FieldPath(steps):
            return compile_path(steps)
        case nodes.Constant() | nodes.UnaryMinus(nodes.Constant()):
            value = _constant(node)
            return lambda message: value
        case nodes.UnaryMinus(part):
            return _arithmetic(nodes.Constant(0), (("-", part),))
        case nodes.Arithmetic(first, rest):
            return _arithmetic(first, rest)
        case _:
            return compile_condition(node)


def _constant(node: nodes.Node) -> nodes.Literal:
    if isinstance(node, nodes.UnaryMinus):
        return values.calculate("-", 0, values.to_number(_constant(node.part)))
    assert isinstance(node, nodes.Constant)
    return node.value


def _is_constant(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Constant) or (
        isinstance(node, nodes.UnaryMinus) and isinstance(node.part, nodes.Constant)
    )


def _arithmetic(first: nodes.Node, rest: tuple[tuple[str, nodes.Node], ...]) -> Getter:
    start = compile_value(first)
    steps = [(sign, compile_value(part)) for sign, part in rest]
    to_number, calculate = values.to_number, values.calculate

    def get(message: Any) -> Any:
        value = to_number(start(message))
        for sign, part in steps:
            value = calculate(sign, value, to_number(part(message)))
        return value

    return get


# -------------------------------------------------------------------------------------------------------
# tests


def compile_condition(node: nodes.Node) -> Test:
    """A function from a message to TRUE, FALSE or unknown."""
    match node:
        case nodes.And(parts):
            return _joined([compile_condition(part) for part in parts], False)
        case nodes.Or(parts):
            return _joined([compile_condition(part) for part in parts], True)
        case nodes.Not(part):
            return _not(compile_condition(part))
        case nodes.Comparison(sign, left, right):
            return _comparison(sign, left, right)
        case nodes.InList(value, items):
            return _among(compile_value(value), items)
        case nodes.Between(value, low, high):
            return _joined([_comparison(">=", value, low), _comparison("<=", value, high)], False)
        case nodes.LikeCondition(value, pattern):
            return _like(compile_value(value), _finder(pattern))
        case nodes.IsNull(value):
            get = compile_value(value)
            return lambda message: values.to_scalar(get(message)) is None
        case _:
            get = compile_value(node)
            return lambda message: values.to_condition(get(message))


def _joined(parts: list[Test], decisive: bool) -> Test:
    """The decisive verdict when one of the parts has it, the other when all have that, else unknown. FALSE decides an AND,
    TRUE an OR."""

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


def _not(part: Test) -> Test:
    def test(message: Any) -> Verdict:
        found = part(message)
        return None if found is None else not found

    return test


def _comparison(sign: str, left: nodes.Node, right: nodes.Node) -> Test:
    if _is_constant(left) and not _is_constant(right):
        sign, left, right = nodes.MIRRORED[sign], right, left
    get, compare = compile_value(left), partial(values.compare, sign)
    if not _is_constant(right):
        other = compile_value(right)
        return lambda message: compare(get(message), other(message))
    literal, direct = _constant(right), values.OPERATORS[sign]
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


def _among(get: Getter, items: tuple[nodes.Node, ...]) -> Test:
    if not all(map(_is_constant, items)):
        return _among_values(get, [compile_value(item) for item in items])
    literals = [_constant(item) for item in items]
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


def _among_values(get: Getter, items: list[Getter]) -> Test:
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


def _like(get: Getter, find: Callable[[str], bool]) -> Test:
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


def _finder(pattern: str) -> Callable[[str], bool]:
    """Plain text with or without ^ and $ is looked for by str, which costs a tenth of a call into RE2."""
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
