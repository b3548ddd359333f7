"""Check that everything installed where Sluice runs has a permissive licence.

    python packaging/licences.py            # prints what hasn't, and exits with 1

Licences are SPDX expressions, derived from the metadata of a distribution. An unknown licence counts as
refused.
"""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from license_expression import AND, OR, ExpressionError, LicenseSymbol, get_spdx_licensing
from locks import BASE, RUNTIME_LOCKS, Locked, read_locked

ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MIT-0",
        "PSF-2.0",
        "TCL",
        "Unlicense",
        "ZPL-2.1",
        "Zlib",
    }
)
EXCEPTIONS = {
    "orjson": (
        "some of its own files are under MPL-2.0, which asks for nothing but that changes to those "
        "files are published; it is used unchanged"
    ),
    "certifi": (
        "a list of certificates under MPL-2.0, used unchanged; where an identity provider is configured alone"
    ),
}
"""Distributions used in spite of their licence, with the reason.

An exception that isn't needed is an error.
"""
LICENCE_SPELLINGS = {
    "Apache 2": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD 3-Clause License": "BSD-3-Clause",
    "BSD 3-Clause OR Apache-2.0": "BSD-3-Clause OR Apache-2.0",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "New BSD": "BSD-3-Clause",
    "PSFL": "PSF-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""Spellings in metadata, and their SPDX expressions."""
VERIFIED_LICENCES = {
    "python-dateutil": "Apache-2.0 AND BSD-3-Clause",
    "uvloop": "MIT OR Apache-2.0",
}
"""Licences from the licence files of distributions whose metadata names two without their combination."""
AMBIGUOUS_NAMES = ("BSD", "BSD License")
"""Ambiguous names; the licence text tells which BSD licence it is."""
_SPDX = get_spdx_licensing()


def find_licence(name: str) -> str | None:
    """Return a distribution's SPDX expression; None if it is unknown. Raises PackageNotFoundError."""
    package = distribution(name)
    if name in VERIFIED_LICENCES:
        return VERIFIED_LICENCES[name]
    expressions = package.metadata.get_all("License-Expression") or [
        text.strip() for text in package.metadata.get_all("License") or [] if "\n" not in text.strip()
    ]
    classifiers = [
        line.rpartition("::")[2].strip()
        for line in package.metadata.get_all("Classifier") or []
        if line.startswith("License ::") and not line.endswith("OSI Approved")
    ]
    expressions_found = {_spdx(text, package) for text in expressions or classifiers}
    if len(expressions_found) != 1 or None in expressions_found:
        expressions_found = {_spdx(text, package) for text in classifiers}
    return expressions_found.pop() if len(expressions_found) == 1 else None


def problems() -> list[str]:
    """Return the problems, one line each."""
    checked = {one.name: one for file in RUNTIME_LOCKS for one in read_locked(BASE / file) if one.applies}
    wrong = [problem for one in checked.values() if (problem := find_problem(one))]
    unneeded = [name for name in EXCEPTIONS if name not in checked or allows(find_licence(name) or "")]
    return wrong + [f"{name}: the exception isn't needed any more" for name in unneeded]


def allows(expression: str) -> bool:
    """Return whether an expression is allowed.

    One licence of a choice (OR), all licences of a combination (AND).
    """
    try:
        return _allows(_SPDX.parse(expression, validate=True))
    except ExpressionError:
        return False


def _allows(part: object) -> bool:
    if isinstance(part, OR):
        return any(map(_allows, part.args))
    if isinstance(part, AND):
        return all(map(_allows, part.args))
    return isinstance(part, LicenseSymbol) and part.key in ALLOWED


def find_problem(one: Locked) -> str:
    """Return the problem with a distribution's licence; "" without one."""
    try:
        licence = find_licence(one.name)
    except PackageNotFoundError:
        return f"{one.name} {one.version}: not installed, so nothing tells its licence"
    if one.name in EXCEPTIONS or allows(licence or ""):
        return ""
    return f"{one.name} {one.version}: {licence or 'its metadata names no licence that is known here'}"


def _spdx(text: str, found: Distribution) -> str | None:
    if text in AMBIGUOUS_NAMES:
        return _bsd_variant(found)
    expression = LICENCE_SPELLINGS.get(text, text)
    try:
        parsed = _SPDX.parse(expression, validate=True)
    except ExpressionError:
        return None
    return None if parsed is None else str(parsed)


def _bsd_variant(found: Distribution) -> str | None:
    """Return the BSD licence of a text: three clauses if one forbids endorsement, else two."""
    files = [file for file in found.files or [] if file.name.upper().startswith(("LICENSE", "COPYING"))]
    text = " ".join(" ".join(str(file.locate().read_text(errors="replace")) for file in files).split())
    if "Redistribution" not in text:
        return None
    return "BSD-3-Clause" if "used to endorse" in text else "BSD-2-Clause"


if __name__ == "__main__":
    wrong = problems()
    print("\n".join(wrong) if wrong else "Every run-time distribution is under a permissive licence, but:")
    if not wrong:
        print(*(f"  {name} ({find_licence(name)}): {why}" for name, why in EXCEPTIONS.items()), sep="\n")
    sys.exit(1 if wrong else 0)
