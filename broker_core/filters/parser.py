"""Parser of filters: from tokens to the tree, by recursive descent.

The grammar, loosest binding first:

    filter      = and { OR and }
    and         = not { AND not }
    not         = NOT not | test
    test        = sum [ comparison | [NOT] IN ( sum {, sum} ) | [NOT] BETWEEN sum AND sum
                      | [NOT] LIKE text | IS [NOT] NULL ]
    sum         = product { + or - product }
    product     = unary { *, /, % or MOD unary }
    unary       = - unary | identifier | number | text | TRUE | FALSE | NULL | ( filter )
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import cast

import re2

from broker_core.filters import nodes
from broker_core.filters.tokens import FilterToken, Step, filter_error, tokenize

MAX_NESTING = 32
"""Maximum nesting of parentheses, NOT and minus."""
MAX_PATTERNS = 16
"""Maximum number of LIKE patterns in one filter. Each has compiled automata."""
PATTERN_MEMORY = 1024 * 1024
"""Maximum bytes that RE2 may use for one pattern."""

_COMPARISONS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}
_ARITHMETIC = frozenset(("+", "-", "*", "/", "%", "MOD"))
_PLAIN = frozenset(("path", "number", "text"))
_WORDS = {"end": "the end", "path": "a field", "number": "a number", "text": "a text"}


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> re2._Regexp:
    """Compile an RE2 pattern for UTF-8 bytes, within the memory limit.

    Raises:
        re2.error: The pattern is invalid or too large.
    """
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY
    options.log_errors = False
    options.never_capture = True
    return re2.compile(pattern.encode(), options=options)


def parse(text: str) -> nodes.Node:
    """Parse a filter to a tree.

    Raises:
        ClientError: `bad_filter`, with the column.
    """
    return _FilterParser(tokenize(text)).parse()


class _FilterParser:
    """Recursive descent parser over one list of tokens. Each `_name` method parses the rule of that name."""

    def __init__(self, tokens: list[FilterToken]) -> None:
        self._tokens = tokens
        self._at = 0
        self._nesting = 0
        self._patterns = 0

    def parse(self) -> nodes.Node:
        """Parse the whole filter. Raises ClientError `bad_filter` if anything follows it."""
        if self._peek().kind == "end":
            raise filter_error("The filter is empty", 1, "Leave the filter out to get every message.")
        node = self._parse_or()
        token = self._peek()
        if token.kind == "path":
            raise filter_error(
                "An operator is missing before this field",
                token.column,
                "To divide, write a blank after the /, as in /a / /b.",
            )
        if token.kind != "end":
            raise self._unexpected("an operator or the end")
        return node

    # Token access.

    def _peek(self) -> FilterToken:
        return self._tokens[self._at]

    def _take(self) -> FilterToken:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _accept(self, *kinds: str) -> FilterToken | None:
        return self._take() if self._tokens[self._at].kind in kinds else None

    def _expect(self, kind: str, expected: str) -> FilterToken:
        if self._peek().kind != kind:
            raise self._unexpected(expected)
        return self._take()

    def _unexpected(self, expected: str) -> Exception:
        token = self._peek()
        return filter_error(
            f"Here should be {expected}, not {_WORDS.get(token.kind, token.kind)}", token.column
        )

    def _enter_nesting(self, token: FilterToken) -> None:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise filter_error(f"Parentheses, NOT and minus nest {MAX_NESTING} deep at most", token.column)

    # Grammar rules.

    def _parse_or(self) -> nodes.Node:
        parts = self._parse_list(self._parse_and, "OR")
        return parts[0] if len(parts) == 1 else nodes.Or(parts)

    def _parse_and(self) -> nodes.Node:
        parts = self._parse_list(self._parse_not, "AND")
        return parts[0] if len(parts) == 1 else nodes.And(parts)

    def _parse_list(self, part: Callable[[], nodes.Node], between: str) -> tuple[nodes.Node, ...]:
        parts = [part()]
        while self._accept(between):
            parts.append(part())
        return tuple(parts)

    def _parse_not(self) -> nodes.Node:
        token = self._accept("NOT")
        if token is None:
            return self._parse_test()
        self._enter_nesting(token)
        node = nodes.Not(self._parse_not())
        self._nesting -= 1
        return node

    def _parse_test(self) -> nodes.Node:
        left = self._parse_sum()
        token = self._accept(*_COMPARISONS)
        if token is not None:
            node: nodes.Node = nodes.Comparison(_COMPARISONS[token.kind], left, self._parse_sum())
            if self._peek().kind in _COMPARISONS:
                raise filter_error(
                    "Comparisons can't be chained", self._peek().column, "Use AND, BETWEEN or parentheses."
                )
            return node
        if self._accept("IS"):
            negated = self._accept("NOT") is not None
            self._expect("NULL", "NULL or NOT NULL")
            return nodes.Not(nodes.IsNull(left)) if negated else nodes.IsNull(left)
        if self._accept("NOT"):
            if self._peek().kind not in ("IN", "BETWEEN", "LIKE"):
                raise self._unexpected("IN, BETWEEN or LIKE")
            return nodes.Not(self._parse_set_test(left))
        return self._parse_set_test(left)

    def _parse_set_test(self, left: nodes.Node) -> nodes.Node:
        if self._accept("IN"):
            self._expect("(", "a list in parentheses")
            items = self._parse_list(self._parse_sum, ",")
            self._expect(")", "a comma or )")
            return nodes.InList(left, items)
        if self._accept("BETWEEN"):
            low = self._parse_sum()
            self._expect("AND", "AND and the upper limit")
            return nodes.Between(left, low, self._parse_sum())
        if self._accept("LIKE"):
            return nodes.LikeCondition(left, self._parse_pattern())
        return left

    def _parse_pattern(self) -> str:
        token = self._expect("text", "a pattern in quotes")
        self._patterns += 1
        if self._patterns > MAX_PATTERNS:
            raise filter_error(
                f"A filter has {MAX_PATTERNS} LIKE patterns at most",
                token.column,
                "Join patterns with | into one.",
            )
        pattern = cast(str, token.value)
        try:
            compile_pattern(pattern)
        except re2.error as error:
            reason = error.args[0].decode(errors="replace") if error.args else "it isn't RE2"
            raise filter_error(
                f"The pattern can't be used: {reason}",
                token.column,
                "Patterns are RE2, which has no backreferences and no look-around.",
            ) from None
        return pattern

    def _parse_sum(self) -> nodes.Node:
        if self._tokens[self._at].kind in _PLAIN and self._tokens[self._at + 1].kind not in _ARITHMETIC:
            return self._parse_unary()  # fast path of almost all filters: a single field or value
        return self._parse_chain(self._parse_product, "+", "-")

    def _parse_product(self) -> nodes.Node:
        return self._parse_chain(self._parse_unary, "*", "/", "%", "MOD")

    def _parse_chain(self, part: Callable[[], nodes.Node], *operators: str) -> nodes.Node:
        first = part()
        if self._tokens[self._at].kind not in operators:
            return first
        operands: list[tuple[str, nodes.Node]] = []
        while (token := self._accept(*operators)) is not None:
            operands.append(("%" if token.kind == "MOD" else token.kind, part()))
        return nodes.Arithmetic(first, tuple(operands))

    def _parse_unary(self) -> nodes.Node:
        token = self._take()
        kind, value = token.kind, token.value
        if kind == "path":
            return nodes.FieldPath(cast(tuple[Step, ...], value))
        if kind in ("number", "text"):
            return nodes.Constant(cast(str | int | float, value))
        if kind in _CONSTANTS:
            return nodes.Constant(_CONSTANTS[kind])
        if kind in ("-", "("):
            return self._parse_nested(token)
        self._at -= 1
        raise self._unexpected("a field, a value or (")

    def _parse_nested(self, token: FilterToken) -> nodes.Node:
        self._enter_nesting(token)
        if token.kind == "-":
            node: nodes.Node = nodes.UnaryMinus(self._parse_unary())
        else:
            node = self._parse_or()
            self._expect(")", "an operator or )")
        self._nesting -= 1
        return node
