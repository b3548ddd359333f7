"""Importer of XAP's JVM system properties (seed 001).

The text is a setenv script, a properties file, a command line, a systemd unit, a Dockerfile, a compose file
or a pu.xml.

In a script or command line a leaf is one option (`-Dname=value`, `-Xmx1g`), or a line without options. In a
properties file it is one property. Of repeated properties the last one counts, as in the JVM.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from broker_core.config.preset_settings import XAP
from broker_core.config.presets import read_xap
from broker_core.config.rule_terms import EnforcementMode
from broker_core.errors import OperatorError
from console.services.policy_import.result import ImportReport, parse_bool, parse_int, value_problem
from console.services.policy_import.script_conditions import conditional_lines, without_comment
from console.services.policy_import.variables import Variables
from console.services.policy_import.xml_leaves import (
    MAX_LEAVES,
    XmlElement,
    XmlLeaf,
    parse_xml,
    too_many_leaves_error,
)

PREFIX: Final = "com.gs.transport_protocol.lrmi.slow-consumer."
MAX_LINE: Final = 65_536
"""Maximum characters of a line with continuations: splitting it into words takes more than linear time."""
_SETTINGS: Final[dict[str, Callable[[str], Any]]] = {
    "enabled": parse_bool,
    "throughput": parse_int,
    "latency": parse_int,
    "retries": parse_int,
}
_CLIENTS: Final = {
    "com.gs.transport_protocol.lrmi.threadpool.queue-size": (
        "The setting limits a client's buffer; Sluice's client has its own limit."
    ),
    "com.gs.fifo_notify.queue": "The setting limits a client's buffer; Sluice's client has its own limit.",
}
_ASSIGNMENT: Final = re.compile(
    r"(?:(?:export|set|declare\s+-x|typeset\s+-x|ENV|ARG)\s+)?(?P<quote>\"?)(?P<name>[A-Za-z_]\w*)"
    r"\+?=(?P<rest>.*)"
    r"|setenv\s+(?P<csh>[A-Za-z_]\w*)\s+(?P<value>.*)",
    re.DOTALL | re.IGNORECASE,
)
_PROPERTY: Final = re.compile(
    r"(?P<name>[^\s=:]+)\s*[=:]\s*(?P<value>.*)|(?P<alone>[\w-]+\.[\w.-]+)\s+(?P<rest>\S.*)", re.DOTALL
)
_COMMENT: Final = re.compile(r"[#!;]|//|::|@?rem\b", re.IGNORECASE)
_OPTION: Final = re.compile(
    r"(?:\$\{\w+:?[-=+]|[\w.-]+\+?[=:]|[\"'\[({,])*(?P<option>-(?:D[\w.$({]|X[\w:]).*)", re.DOTALL
)
"""Option of the JVM, and the characters that may precede it: `NAME=`, quotes, brackets, or `${NAME=`."""
_HAS_OPTION: Final = re.compile(r"(^|[\s'\"=:,\[(])-[DX]\w")
_PAIRS: Final = {"}": "{", "]": "[", ")": "("}


_EXPECTS_NOTHING: Final = frozenset(("throughput", "latency"))
"""Settings that make XAP expect no bytes if they are 0: then no client is slow."""


class _JvmProperty(NamedTuple):
    """System property: its name, the leaf of its value, and other leaves that belong to it (a key)."""

    name: str
    value: XmlLeaf
    beside: tuple[XmlLeaf, ...] = ()


def import_xap(text: str, variables: Variables) -> ImportReport:
    """Import the slow-consumer properties as the instance's entry of `xap`.

    All other settings concern other parts of XAP.

    Raises:
        OperatorError: `bad_import`.
    """
    if text.lstrip().startswith("<"):
        root = parse_xml(text, variables)
        leaves, found = list(root.all_leaves()), list(_list_properties(root))
        conditional = {
            leaf.line for one in root.walk() if "profile" in one.attributes for leaf in one.all_leaves()
        }
    else:
        conditional = conditional_lines(text, _lines(text))
        leaves = [leaf.resolve(variables) for leaf in parse_options(text)]
        found = [_JvmProperty(_name(leaf), leaf) for leaf in leaves]
    imported = ImportReport(leaves)
    reading = _PropertyReader(imported, conditional)
    for one in reversed(found):
        reading.read_property(one)
    if made := reading.finish():
        imported.document["xap"] = [made]
    settled = {leaf for one in found if _is_known(one.name) for leaf in (one.value, *one.beside)}
    for leaf in leaves:
        if leaf not in settled and (PREFIX in leaf.name or PREFIX in leaf.value):
            imported.record_skipped(
                leaf, 'Write each property as <prop key="…">, as -Dname=value, or on a separate line.'
            )
        imported.record_unrelated(leaf)
    return imported


def _is_known(name: str) -> bool:
    return name.startswith(PREFIX) or name in _CLIENTS


def _name(leaf: XmlLeaf) -> str:
    return leaf.name.removeprefix("-D")


class _PropertyReader:
    """Settings read from a file's properties so far, the last property of the file first.

    An imported policy never acts earlier than XAP: where a value can't be read, it is in shadow mode.
    """

    def __init__(self, imported: ImportReport, conditional: set[int]) -> None:
        self._imported = imported
        self._conditional_lines = conditional
        """Lines that depend on a condition, or that the file may override."""
        self._is_conditional = False
        """Whether an imported value is on such a line."""
        self._made: dict[str, Any] = {}
        self._unread: list[str] = []
        """Settings whose last value in the file can't be read."""
        self._expects_no_bytes = False
        """Whether XAP expects no bytes, so that no client is slow."""

    def read_property(self, one: _JvmProperty) -> None:
        """Import a property, or record why it is skipped."""
        setting = one.name.removeprefix(PREFIX)
        if not _is_known(one.name):
            return
        if one.name in _CLIENTS:
            reason = _CLIENTS[one.name]
        elif setting not in _SETTINGS:
            reason = f"XAP's settings of slow consumers are {', '.join(_SETTINGS)}."
        elif setting in self._made or setting in self._unread:
            reason = "The file sets it again later: the last value applies."
            # A script may put the value of a variable before or after its new options.
            is_option = one.value.name.startswith("-D")
            self._is_conditional |= is_option and _SETTINGS[setting](one.value.value) != self._made.get(
                setting
            )
        else:
            reason = self._read_value(setting, one.value)
        for leaf in (one.value, *one.beside):
            if reason:
                self._imported.record_skipped(leaf, reason)
            else:
                self._imported.record_imported(leaf, "xap", setting)

    def _read_value(self, setting: str, leaf: XmlLeaf) -> str:
        """Read a setting's value. Returns why it can't be imported, or ""."""
        value = _SETTINGS[setting](leaf.value)
        reason = value_problem(leaf, value, lambda reader: read_xap(reader, [{setting: value}]))
        if not reason:
            self._made[setting] = value
            self._is_conditional |= leaf.line in self._conditional_lines
            return ""
        self._unread.append(setting)
        if setting in _EXPECTS_NOTHING and value == 0:
            self._expects_no_bytes = True
            reason = "With 0, XAP expects no bytes, and no client is slow."
        return reason

    def finish(self) -> dict[str, Any]:
        """Return the settings of the policy's entry, in shadow mode if one of the file can't be read."""
        made = self._made
        throughput, latency = (made.get(name, XAP[name].default) for name in ("throughput", "latency"))
        # XAP divides integers.
        if made.get("enabled") and (self._expects_no_bytes or throughput * latency < 1_000):
            made["enabled"] = False
            self._imported.remark("xap", "false, as XAP expects no bytes with this throughput and latency")
        elif made.get("enabled") and self._unread:
            made["mode"] = EnforcementMode.SHADOW.value
            names = ", ".join(sorted(self._unread))
            self._imported.remark(
                "xap", f"shadow, as a default stands for {names}, which can't be read: set it, and enforce"
            )
        elif made.get("enabled") and self._is_conditional:
            made["mode"] = EnforcementMode.SHADOW.value
            self._imported.remark(
                "xap", "shadow, as the file may have it under a condition only: enforce if it always holds"
            )
        return {name: made[name] for name in (*_SETTINGS, "mode") if name in made}


def parse_options(text: str) -> Iterator[XmlLeaf]:
    """Yield the options, properties and other lines of a script or properties file.

    Raises OperatorError `bad_import`.
    """
    total = 0
    for line, logical in _lines(text):
        for leaf in _parse_leaves(line, logical):
            total += 1
            if total > MAX_LEAVES:
                raise too_many_leaves_error(line)
            yield leaf


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that isn't blank or a comment.

    A line that ends in \\ (Windows: ^), or inside a quote, is joined with the next. Raises OperatorError
    `bad_import`.
    """
    parts: list[str] = []
    first, length, quote = 0, 0, ""
    for number, physical in enumerate(text.splitlines(), 1):
        line = physical.strip()
        if not parts:
            if not line or _COMMENT.match(line):
                continue
            first = number
        goes_on = line.endswith(("\\", "^"))
        parts.append(line[:-1] if goes_on else line)
        length = len(line) + (length if len(parts) > 1 else 0)
        if length > MAX_LINE:
            raise OperatorError(
                "bad_import",
                f"Line {first} has more than {MAX_LINE} characters, with the lines that continue it.",
                "Check that quotes are closed, or import only the part with the options.",
                line=first,
            )
        if quote or _is_quoted(parts[0]):  # in any other line a quote is an ordinary character
            quote = _quote_after(parts[-1], quote)
        if not goes_on and not quote:
            yield first, " ".join(parts)
            parts = []
    if quote:
        raise OperatorError(
            "bad_import", f"The quote opened on line {first} is never closed.", "Close it.", line=first
        )
    if parts:
        yield first, " ".join(parts)


def _is_quoted(line: str) -> bool:
    """Whether a line assigns a quoted text, which may continue in the next line."""
    found = _ASSIGNMENT.fullmatch(line)
    return found is not None and bool(
        found["quote"] or (found["rest"] or found["value"] or "").startswith(('"', "'"))
    )


def _quote_after(text: str, quote: str) -> str:
    """Return the quote that is open after a text, given the one open before it; "" for none."""
    escaped = False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
    return quote


def _words(text: str) -> list[str]:
    """Return the words of a text as a shell splits it. Elements of a JSON list are separate words."""
    text = text.replace('","', '", "').replace("','", "', '")
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _parse_leaves(line: int, text: str) -> Iterator[XmlLeaf]:
    """Yield the leaves of one logical line."""
    where = f"line {line}"
    has_option = _HAS_OPTION.search(text) is not None
    if has_option:  # a line of a script: in a properties file a # may be part of a value
        text = without_comment(text)
    if found := _ASSIGNMENT.fullmatch(text):
        name = found["name"] or found["csh"]
        # The shell splits a variable's value again where it is used, after it has removed the quotes.
        assigned = found["value"] if found["csh"] else found["rest"].removesuffix(found["quote"])
        words = " ".join(_words(assigned)).split()
        if any(word.startswith("-") or _OPTION.fullmatch(word) for word in words):
            yield from (_option(f"{where} {name}", line, word) for word in words)
        else:
            yield XmlLeaf(f"{where} {name}", line, name, " ".join(words))
    elif has_option:
        yield from (_option(where, line, word) for word in " ".join(_words(text)).split())
    elif found := _PROPERTY.fullmatch(text):
        yield XmlLeaf(
            where, line, found["name"] or found["alone"], _unquoted(found["value"] or found["rest"] or "")
        )
    else:
        yield XmlLeaf(where, line, text, "")


def _option(where: str, line: int, word: str) -> XmlLeaf:
    found = _OPTION.fullmatch(word)
    word = word.rstrip(";") if found is None else _without_closing(found["option"])
    name, _, value = word.partition("=")
    return XmlLeaf(where, line, name, _unquoted(value))


def _without_closing(option: str) -> str:
    """Return an option without the quotes, commas and brackets behind it that close something before it."""
    while option and (
        option[-1] in "\"',;" or ((opening := _PAIRS.get(option[-1])) and opening not in option)
    ):
        option = option[:-1]
    return option


def _unquoted(value: str) -> str:
    return value.strip().strip("\"'")


def _list_properties(root: XmlElement) -> Iterator[_JvmProperty]:
    """Yield the properties of a pu.xml: name in `key` or `name`; value in `value` or as text."""
    for element in root.walk():
        key = element.attributes.get("key") or element.attributes.get("name")
        inner = element.child("value")
        value = element.attributes.get("value") or element.text or (inner.text if inner is not None else None)
        if key is not None and value is not None:
            yield _JvmProperty(key.value, value, (key,))
        elif key is not None and _is_known(key.value):
            yield _JvmProperty(key.value, key)
