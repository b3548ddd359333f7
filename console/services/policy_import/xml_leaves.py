"""Leaves of an XML configuration file: attributes, elements with text, and empty elements.

Comments and processing instructions aren't leaves. Names lose their namespaces.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import ParseError, XMLParser

from broker_core.errors import OperatorError
from console.access.policy_secrets import SET
from console.services.policy_import.variables import Variables

MAX_LEAVES: Final = 10_000
MAX_DEPTH: Final = 64
MAX_PATH: Final = 1_000
"""Maximum characters of an element's path, which each leaf shows."""
MAX_SHOWN: Final = 200
"""Maximum characters of a leaf that are shown."""
_KEYS: Final = ("name", "key", "id")
"""Attributes that identify an element."""
_SECRET_NAME: Final = re.compile(
    r"pass(?!ive|eng|thr|ing)|pwd|secret|token|credential|masterauth|api_?key", re.IGNORECASE
)
_SECRET_VALUE: Final = re.compile(
    r"(passw\w*|passphrase|secret|token)\s*[=:]|://[^/\s]*:[^/\s]*@", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, eq=False)
class XmlLeaf:
    """Setting of a file: its path, its line (from 1), name and value. Compared by identity."""

    where: str
    line: int
    name: str
    value: str
    secret: bool = False

    @property
    def description(self) -> str:
        """The setting as `name=value`, at most `MAX_SHOWN` characters. A secret's value reads "set"."""
        value = self._shown_value()
        name = self.name
        if self.is_secret and not value:
            name = re.sub(r"([\s=:]).*", rf"\1{SET}", name, flags=re.DOTALL)  # a line that wasn't split
        shown = f"{name}={SET if self.is_secret else value}" if value else name
        return shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 1]}…"

    @property
    def is_secret(self) -> bool:
        """Whether the value may contain a secret, by its element, its name or its text."""
        named = self.secret or _SECRET_NAME.search(self.name[:MAX_SHOWN]) is not None
        return named or _SECRET_VALUE.search(self._shown_value()) is not None

    def resolve(self, variables: Variables) -> XmlLeaf:
        """Return the leaf with the values of its variables."""
        value = variables.resolve(self.value)
        return self if value == self.value else replace(self, value=value)

    def _shown_value(self) -> str:
        """Return the shown part of the value: the time to search a longer text isn't bounded."""
        return " ".join(self.value[: MAX_SHOWN * 2].split())


@dataclass(slots=True, eq=False)
class XmlElement:
    """XML element. `text` is its leaf if it has text (also behind its children), or has no content at all."""

    name: str
    line: int
    attributes: dict[str, XmlLeaf] = field(default_factory=dict)
    text: XmlLeaf | None = None
    children: list[XmlElement] = field(default_factory=list)

    def walk(self) -> Iterator[XmlElement]:
        """Yield the element and all elements within it, in the order of the file."""
        yield self
        for child in self.children:
            yield from child.walk()

    def all_leaves(self) -> Iterator[XmlLeaf]:
        """Yield all leaves within the element, in the order of the file."""
        for element in self.walk():
            yield from element.attributes.values()
            if element.text is not None:
                yield element.text

    def resolve(self, variables: Variables) -> None:
        """Replace the variables in all leaves within the element by their values."""
        for element in self.walk():
            for name, leaf in element.attributes.items():
                element.attributes[name] = leaf.resolve(variables)
            if element.text is not None:
                element.text = element.text.resolve(variables)

    def child(self, name: str) -> XmlElement | None:
        """Return the first child of that name, or None."""
        return next((child for child in self.children if child.name == name), None)

    def text_of(self, name: str) -> XmlLeaf | None:
        """Return the leaf of the first child of that name; None if there is no such child or text."""
        child = self.child(name)
        return child.text if child is not None else None


def leaf_value(leaf: XmlLeaf | None) -> str:
    """Return a leaf's value, or "" for None."""
    return leaf.value if leaf is not None else ""


def parse_xml(text: str, variables: Variables) -> XmlElement:
    """Parse a file and return its root element, with the values of variables.

    Entities and external references are refused (defusedxml), because configuration files come from
    untrusted sources.

    Raises:
        OperatorError: `bad_import`, with the line if it is known.
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
            f"Check line {line}, column {column + 1}.",
            line=line,
            column=column + 1,
        ) from None
    except DefusedXmlException:
        raise OperatorError(
            "bad_import", "The file declares entities or a document type.", "Write it without a DOCTYPE."
        ) from None
    made = _settled(root, f"/{root.name}", secret=False)
    made.resolve(variables)
    return made


def too_many_leaves_error(line: int) -> OperatorError:
    """Return the error for a file with more than `MAX_LEAVES` settings."""
    return OperatorError(
        "bad_import",
        f"The file has more than {MAX_LEAVES} settings (line {line}).",
        "Import only the part with the policies.",
        line=line,
    )


@dataclass(slots=True)
class _OpenElement:
    """Element that the parser hasn't finished."""

    name: str
    line: int
    attributes: dict[str, str]
    texts: list[str] = field(default_factory=list)
    children: list[_OpenElement] = field(default_factory=list)


class _LeafTreeBuilder:
    """Target of the XML parser: builds elements with line numbers, within the limits of size and depth."""

    def __init__(self) -> None:
        self.parser: Any = None
        self._open: list[_OpenElement] = []
        self._root: _OpenElement | None = None
        self._leaves = self._path = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        name, line = tag.rpartition("}")[2], self.parser.parser.CurrentLineNumber
        self._leaves += 1 + len(attributes)
        self._path += 1 + len(name)
        # Each element counts as a leaf, even one with children only: this limit bounds elements too.
        if self._leaves > MAX_LEAVES:
            raise too_many_leaves_error(line)
        if (
            len(self._open) >= MAX_DEPTH
            or self._path > MAX_PATH
            or any(len(one) > MAX_PATH for one in attributes)
        ):
            raise OperatorError(
                "bad_import",
                f"The element on line {line} is nested too deeply, or its "
                "name is too long: there are at most "
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
    """Return an element with its leaves.

    Paths get numbers only now, when all children with equal names are known.
    """
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
    total, counted = Counter(child.name for child in source.children), Counter[str]()
    for child in source.children:
        counted[child.name] += 1
        suffix = f"[{counted[child.name]}]" if total[child.name] > 1 else ""
        made.children.append(_settled(child, f"{where}/{child.name}{suffix}", secret=secret))
    return made
