"""What an importer gives, and what the importers of XML share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree.ElementTree import Element

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import ParseError, fromstring

from broker_core.errors import OperatorError


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A setting that wasn't taken over: where it stood, what it was, why not."""

    where: str
    what: str
    why: str


@dataclass(slots=True)
class Imported:
    """`document` is a fragment of a policy document: only what the file says. `actions` are definitions of actions."""

    document: dict[str, Any] = field(default_factory=dict)
    actions: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def leave_out(self, where: str, what: str, why: str) -> None:
        """Say that something wasn't taken over."""
        self.left_out.append(LeftOut(where, what, why))


def parse_xml(text: str) -> Element:
    """The root element, namespaces dropped from its names. Raises OperatorError bad_import with the line.

    Entities and external references are refused (defusedxml): a configuration file is somebody else's text.
    """
    try:
        root = fromstring(text)
    except ParseError as problem:
        line, column = problem.position
        raise OperatorError(
            "bad_import", f"The file isn't XML: {problem.msg if hasattr(problem, 'msg') else problem}.",
            f"Look at line {line}, column {column + 1}.", line=line, column=column + 1,
        ) from None
    except DefusedXmlException:
        raise OperatorError(
            "bad_import", "The file declares entities or a document type.", "Write it without a DOCTYPE."
        ) from None
    for element in root.iter():
        if isinstance(element.tag, str):
            element.tag = element.tag.rpartition("}")[2]
    return root


def whole(text: str | None) -> int | None:
    """A whole number, or None when it is something else."""
    try:
        return int((text or "").strip())
    except ValueError:
        return None


def number(text: str | None) -> float | None:
    """A number, or None when it is something else."""
    try:
        return float((text or "").strip())
    except ValueError:
        return None


def flag(text: str | None) -> bool | None:
    """true or false, or None when it is something else."""
    return {"true": True, "false": False}.get((text or "").strip().lower())


def others(imported: Imported, where: str, given: Mapping[str, str], known: Mapping[str, object] | set[str], why: str) -> None:
    """Leave out the attributes that aren't known."""
    for name, value in given.items():
        if name not in known:
            imported.leave_out(where, f"{name}={value}", why)
