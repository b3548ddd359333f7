"""Variables of configuration files: values that only the other system, or a template tool, can resolve.

A value with an unset variable is never imported. Operators set variables by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from broker_core.errors import OperatorError

MAX_VARIABLES: Final = 100
MAX_VALUE: Final = 1_000
"""Maximum characters of a variable's value, and of its name."""
_VARIABLE: Final = re.compile(
    r"[$#%]\{\s*(?P<braces>[^{}]*?)\s*\}"
    r"|\$\(\s*(?P<parentheses>[^()]*?)\s*\)"
    r"|\{\{-?\s*(?P<template>[^{}]*?)\s*-?\}\}"
    r"|<%[=-]?\s*(?P<tag>[^<>%]*?)\s*-?%>"
    r"|@(?P<at>[A-Za-z_][\w.-]*)@"
    r"|%(?P<windows>[A-Za-z_]\w*)%"
    r"|\$(?P<shell>[A-Za-z_]\w*)"
)
_OPENING: Final = re.compile(r"[$#%]\{|\$\(|\{\{|<%")
_TEMPLATE: Final = re.compile(r"\{\{[^{}]*\}\}")


def is_placeholder(text: str) -> bool:
    """Return whether a text contains a variable or a template's tag, so that the file lacks its value."""
    return _OPENING.search(text) is not None or _VARIABLE.search(text) is not None


def without_templates(text: str) -> str:
    """Return a text without `{{NAME}}`, which AMPS and Sluice fill in when an action runs."""
    return _TEMPLATE.sub("", text)


def variable_names(text: str) -> list[str]:
    """Return the names of the variables in a text, in order."""
    return [_name(found) for found in _VARIABLE.finditer(text)]


def unset_reason(text: str) -> str:
    """Return why a value with unset variables isn't imported."""
    names = " and ".join(f"{name[:80]!r}" for name in dict.fromkeys(variable_names(text)))
    return f"The value is the variable {names or 'of a template'}: set it, or write its value into the file."


def parse_assignments(texts: Iterable[str]) -> dict[str, str]:
    """Return the values of texts such as "NAME=VALUE".

    Raises:
        OperatorError: `bad_import` for a text of another form, or for too many.
    """
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.strip().partition("=")
        if not equals or not name.strip():
            raise OperatorError("bad_import", f"{text[:80]!r} sets no variable.", "Write NAME=VALUE.")
        values[name.strip()] = value.strip()
    return values


class Variables:
    """Values of variables that an operator or the file itself sets."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        """Check the values.

        Raises:
            OperatorError: `bad_import`.
        """
        self._values = dict(values or {})
        self._used: set[str] = set()
        if len(self._values) > MAX_VARIABLES:
            raise OperatorError("bad_import", f"More than {MAX_VARIABLES} variables are set.", "Set fewer.")
        for name, value in self._values.items():
            if max(len(name), len(value)) > MAX_VALUE or not (value.isprintable() and name.isprintable()):
                raise OperatorError(
                    "bad_import",
                    f"The value of the variable {name[:80]!r} has no line of at most {MAX_VALUE} characters.",
                    "Write it into the file.",
                )

    def resolve(self, text: str) -> str:
        """Return a text with the values of its variables. A variable without a value stays."""
        return _VARIABLE.sub(self._value, text) if self._values else text

    def add_defaults(self, values: Iterable[tuple[str, str]]) -> None:
        """Add values that the file itself sets, where the operator has set none."""
        for name, value in values:
            if name not in self._values and not is_placeholder(value):
                self._values[name] = value
                self._used.add(name)

    def unused(self) -> Iterator[str]:
        """Yield the names that no value of the file has."""
        return (name for name in self._values if name not in self._used)

    def _value(self, found: re.Match[str]) -> str:
        name = _name(found)
        if name not in self._values:
            return found[0]
        self._used.add(name)
        return self._values[name]


def _name(found: re.Match[str]) -> str:
    """Return a variable's name, without a default after it (`${NAME:5}`, `${NAME:-5}`) or Ruby's `@`."""
    inner = next(text for text in found.groups() if text is not None)
    if found["braces"] is not None:
        inner = re.split(r"[:=?+]", inner, maxsplit=1)[0]
    return inner.strip().lstrip("@")
