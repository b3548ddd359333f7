"""Leaves of configuration files that aren't XML: lines of words, `key = value`, and braces (NATS, JSON).

A leaf's `where` is its path, such as `policies[1].definition.max-length`. Values are texts, as in XML.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from broker_core.errors import OperatorError
from console.services.policy_import.xml_leaves import (
    MAX_DEPTH,
    MAX_LEAVES,
    MAX_PATH,
    XmlElement,
    XmlLeaf,
    too_many_leaves_error,
)

_TOKEN: Final = re.compile(
    r"(?P<variable>[$#%]\{[^{}\n]*\}\w*|\{\{[^{}\n]*\}\}\w*|<%[^%\n]*%>\w*)"
    r"|(?P<space>[\s,;]+|#[^\n]*|//[^\n]*)"
    r"|(?P<mark>[{}\[\]])"
    r"|(?P<text>\"(?:\\.|[^\"\\])*\"|'[^']*')"
    r"|(?P<sign>[:=])"
    r"|(?P<word>(?:[^\s{}\[\]\",;:='#]|:(?!\s)|(?<=\S)#)+)"
)
_SECRET_KEY: Final = re.compile(r"pass|auth|user|nkey|jwt|acl", re.IGNORECASE)
"""Keys whose value, or a part of it, may be a secret. They say nothing about policy."""


def parse_words(text: str) -> list[XmlLeaf]:
    """Return a leaf for each line such as `max_queued_messages 1000`."""
    return list(_numbered(_split_lines(text, r"\s+")))


def parse_pairs(text: str) -> list[XmlLeaf]:
    """Return a leaf for each line such as `consumer_timeout = 1800000`."""
    return list(_numbered(_split_lines(text, r"\s*=\s*")))


def parse_braces(text: str) -> list[XmlLeaf]:
    """Return the leaves of NATS's configuration format, of which JSON is a part.

    Raises:
        OperatorError: `bad_import`, with the line. The text of the file is never part of it.
    """
    return list(_bounded(_BraceReader(text).read_block("", 0, "")))


def leaves_of_xml(root: XmlElement) -> list[XmlLeaf]:
    """Return the leaves of a file in XML."""
    return list(root.all_leaves())


def path_of(leaf: XmlLeaf) -> str:
    """Return a leaf's path with dots, and without the root element of XML."""
    return leaf.where.strip("/").replace("/@", ".").replace("/", ".")


def _split_lines(text: str, separator: str) -> Iterator[tuple[int, str, str]]:
    """Yield number, key and value of each line that isn't blank or a comment."""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line and not line.startswith("#"):
            key, *rest = re.split(separator, line[:MAX_PATH], maxsplit=1)
            yield number, key, rest[0].strip("\"'") if rest else ""


def _numbered(lines: Iterator[tuple[int, str, str]]) -> Iterator[XmlLeaf]:
    """Yield the lines as leaves. A repeated key gets a number, from its second time on."""
    seen = Counter[str]()
    for number, key, value in lines:
        seen[key] += 1
        if seen.total() > MAX_LEAVES:
            raise too_many_leaves_error(number)
        where = key if seen[key] == 1 else f"{key}[{seen[key]}]"
        yield XmlLeaf(where, number, key, value, _SECRET_KEY.search(key) is not None)


def _bounded(leaves: Iterator[XmlLeaf]) -> Iterator[XmlLeaf]:
    for count, leaf in enumerate(leaves, 1):
        if count > MAX_LEAVES:
            raise too_many_leaves_error(leaf.line)
        yield leaf


class _BraceReader:
    """Reader of `key: value`, `key = value`, `key value` and `key { … }`, with lists."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1

    def read_block(self, path: str, depth: int, end: str) -> Iterator[XmlLeaf]:
        """Yield the leaves up to the closing mark `end`; "" is the end of the file."""
        if depth > MAX_DEPTH or len(path) > MAX_PATH:
            raise self._error("is nested too deeply")
        number = 0
        while (token := self._next())[0] != "end":
            kind, text = token
            if kind == "mark" and text == end:
                return
            if end == "]":
                number += 1
                yield from self._value(f"{path}[{number}]", _last_key(path), token, depth)
            elif kind == "mark" and text == "{" and not path:
                yield from self.read_block("", depth + 1, "}")
            elif kind in ("word", "text"):
                key = text[:MAX_PATH]
                where = f"{path}.{key}" if path else key
                yield from self._value(where, key, self._next(after_key=True), depth)
            else:
                raise self._error("can't be read")
        if end:
            raise self._error("ends within a block or a list")

    def _value(self, where: str, key: str, token: tuple[str, str], depth: int) -> Iterator[XmlLeaf]:
        kind, text = token
        if kind == "mark" and text in "{[":
            yield from self.read_block(where, depth + 1, "}" if text == "{" else "]")
        elif kind in ("word", "text"):
            secret = _SECRET_KEY.search(where) is not None
            yield XmlLeaf(where, self._line, key, text, secret)
        else:
            raise self._error("has a key without a value")

    def _next(self, *, after_key: bool = False) -> tuple[str, str]:
        """Return kind and text of the next token. A sign between key and value is skipped."""
        while self._at < len(self._text):
            found = _TOKEN.match(self._text, self._at)
            if found is None:
                raise self._error("can't be read")
            self._line += found[0].count("\n")
            self._at = found.end()
            kind = "word" if found.lastgroup == "variable" else found.lastgroup or ""
            if kind == "space" or (kind == "sign" and after_key):
                continue
            return kind, _unquoted(found[0]) if kind == "text" else found[0]
        return "end", ""

    def _error(self, problem: str) -> OperatorError:
        return OperatorError(
            "bad_import", f"The file {problem}.", f"Check line {self._line}.", line=self._line
        )


def _last_key(path: str) -> str:
    return path.rpartition(".")[2].partition("[")[0]


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text)) if text[0] == '"' else text[1:-1]
    except ValueError:
        return text[1:-1]
