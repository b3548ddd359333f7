"""What a configuration file holds, leaf by leaf: each attribute, each element with text or with nothing in it.

Comments and processing instructions aren't leaves. Namespaces are dropped from names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import ParseError, XMLParser

from broker_core.errors import OperatorError
from console.access.policy_secrets import SET

MAX_LEAVES: Final = 10_000
MAX_DEPTH: Final = 64
MAX_PATH: Final = 1_000
"""Characters of an element's path: each leaf is told with its own."""
MAX_SHOWN: Final = 200
"""Characters of a leaf that are told."""
_KEYS: Final = ("name", "key", "id")
"""Attributes that say what an element is about."""
_SECRET_NAME: Final = re.compile(r"passw|passphrase|secret|token|credential", re.IGNORECASE)
_SECRET_VALUE: Final = re.compile(
    r"(passw\w*|passphrase|secret|token)\s*[=:]|://[^/\s]*:[^/\s]*@", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, eq=False)
class XmlLeaf:
    """One setting of a file: where it stands, its line (from 1), its name and value. No two are equal."""

    where: str
    line: int
    name: str
    value: str
    secret: bool = False

    @property
    def description(self) -> str:
        """`name=value` for whoever reads the result, cut to 200 characters. A password's value reads "set"."""
        # As much as is shown is looked at: what a regular expression takes on a long text isn't bounded.
        told = " ".join(self.value[: MAX_SHOWN * 2].split())
        secret = self.secret or _SECRET_NAME.search(self.name[:MAX_SHOWN]) or _SECRET_VALUE.search(told)
        shown = f"{self.name}={SET if secret else told}" if told else self.name
        return shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 1]}…"


@dataclass(slots=True, eq=False)
class XmlElement:
    """An element. `text` is its leaf when it has text (that behind its children included), or nothing in it."""

    name: str
    line: int
    attributes: dict[str, XmlLeaf] = field(default_factory=dict)
    text: XmlLeaf | None = None
    children: list[XmlElement] = field(default_factory=list)

    def walk(self) -> Iterator[XmlElement]:
        """The element and all within it, in the order of the file."""
        yield self
        for child in self.children:
            yield from child.walk()

    def all_leaves(self) -> Iterator[XmlLeaf]:
        """All leaves within it, in the order of the file."""
        for element in self.walk():
            yield from element.attributes.values()
            if element.text is not None:
                yield element.text

    def child(self, name: str) -> XmlElement | None:
        """The first child of that name."""
        return next((child for child in self.children if child.name == name), None)

    def text_of(self, name: str) -> XmlLeaf | None:
        """The leaf of the first child of that name; None when there is none, or it has no text of its own."""
        child = self.child(name)
        return child.text if child is not None else None


def leaf_value(leaf: XmlLeaf | None) -> str:
    """A leaf's value; nothing when there is none."""
    return leaf.value if leaf is not None else ""


def parse_xml(text: str) -> XmlElement:
    """The root element. Raises OperatorError bad_import, with the line where there is one.

    Entities and external references are refused (defusedxml): a configuration file is somebody else's text.
    """
    tree = _LeafTreeBuilder()
    parser = tree.parser = XMLParser(target=tree)
    try:
        parser.feed(text)
        root: _OpenElement = parser.close()
    except ParseError as problem:
        line, column = problem.position
        raise OperatorError(
            "bad_import",
            f"The file isn't XML: {str(problem).rsplit(': line', 1)[0]}.",
            f"Look at line {line}, column {column + 1}.",
            line=line,
            column=column + 1,
        ) from None
    except DefusedXmlException:
        raise OperatorError(
            "bad_import", "The file declares entities or a document type.", "Write it without a DOCTYPE."
        ) from None
    return _settled(root, f"/{root.name}", secret=False)


def too_many_leaves_error(line: int) -> OperatorError:
    """What is said of a file with more settings than are read."""
    return OperatorError(
        "bad_import",
        f"The file has more than {MAX_LEAVES} settings (line {line}).",
        "Import only the part with the policies.",
        line=line,
    )


@dataclass(slots=True)
class _OpenElement:
    """An element while it is read."""

    name: str
    line: int
    attributes: dict[str, str]
    texts: list[str] = field(default_factory=list)
    children: list[_OpenElement] = field(default_factory=list)


class _LeafTreeBuilder:
    """The parser's target: elements with the lines they stand on, within bounds."""

    def __init__(self) -> None:
        self.parser: Any = None
        self._open: list[_OpenElement] = []
        self._root: _OpenElement | None = None
        self._leaves = self._path = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        name, line = tag.rpartition("}")[2], self.parser.parser.CurrentLineNumber
        self._leaves += 1 + len(attributes)
        self._path += 1 + len(name)
        # An element counts as one even where it only holds others: that bounds both.
        if self._leaves > MAX_LEAVES:
            raise too_many_leaves_error(line)
        if (
            len(self._open) >= MAX_DEPTH
            or self._path > MAX_PATH
            or any(len(one) > MAX_PATH for one in attributes)
        ):
            raise OperatorError(
                "bad_import",
                f"The element on line {line} is nested too deeply, or its name is too long: there are at most "
                f"{MAX_DEPTH} elements within each other, and {MAX_PATH} characters in all their names.",
                "Import only the part with the policies.",
                line=line,
            )
        element = _OpenElement(name, line, attributes)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self._root = element
        self._open.append(element)

    def data(self, text: str) -> None:
        self._open[-1].texts.append(text)

    def end(self, tag: str) -> None:
        self._path -= 1 + len(self._open.pop().name)

    def close(self) -> _OpenElement | None:
        return self._root


def _settled(source: _OpenElement, where: str, *, secret: bool) -> XmlElement:
    """An element with its leaves. It is known only at the end which of its children have a name to themselves."""
    names = [source.name, *(source.attributes.get(key, "")[:MAX_SHOWN] for key in _KEYS)]
    secret = secret or any(_SECRET_NAME.search(name) for name in names)
    local = Counter(key.rpartition("}")[2] for key in source.attributes)
    made = XmlElement(source.name, source.line)
    for key, value in source.attributes.items():
        name = key.rpartition("}")[2]
        name = name if local[name] == 1 else key
        made.attributes[name] = XmlLeaf(
            f"{where}/@{name}", source.line, name, value.strip(), secret and name not in _KEYS
        )
    text = "".join(source.texts).strip()
    if text or not (source.children or source.attributes):
        made.text = XmlLeaf(where, source.line, source.name, text, secret)
    total, seen = Counter(child.name for child in source.children), Counter[str]()
    for child in source.children:
        seen[child.name] += 1
        place = f"[{seen[child.name]}]" if total[child.name] > 1 else ""
        made.children.append(_settled(child, f"{where}/{child.name}{place}", secret=secret))
    return made
