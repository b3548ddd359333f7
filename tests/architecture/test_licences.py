"""Licences of installed distributions: all permissive, and all listed in the bill of materials."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import licences
import pytest
import sbom
from locks import BASE, RUNTIME_LOCKS, Locked, read_locked


def installed(site: Path, *metadata: str, text: str = "") -> Locked:
    """Install a distribution `made` 1.0 with these licence fields."""
    (home := site / "made-1.0.dist-info").mkdir()
    (home / "METADATA").write_text(
        "\n".join(("Metadata-Version: 2.1", "Name: made", "Version: 1.0", *metadata))
    )
    (home / "RECORD").write_text("made-1.0.dist-info/LICENSE,,\nmade-1.0.dist-info/METADATA,,\n")
    (home / "LICENSE").write_text(text)
    return Locked("made", "1.0", None, ())


def test_everything_is_under_a_permissive_licence_or_an_exception_that_is_needed() -> None:
    assert licences.problems() == []


@pytest.mark.parametrize(
    ("metadata", "text", "said"),
    [
        (("License-Expression: MIT",), "", ""),
        (("License-Expression: LGPL-3.0-only OR BSD-2-Clause",), "", ""),
        (("License: BSD",), "Redistribution … may not be used to endorse", ""),
        (("Classifier: License :: OSI Approved :: MIT License",), "", ""),
        (("License: see the file", "Classifier: License :: OSI Approved :: MIT License"), "", ""),
        (("License-Expression: MIT AND LGPL-3.0-only",), "", "MIT AND LGPL-3.0-only"),
        (("License: LGPL-2.1-or-later",), "", "LGPL-2.1-or-later"),
        (("License: Ours",), "", "no licence that is known"),
        (("License: BSD",), "all rights reserved", "no licence that is known"),
        (
            (
                "Classifier: License :: OSI Approved :: MIT License",
                "Classifier: License :: Other/Proprietary License",
            ),
            "",
            "no licence",
        ),
        ((), "", "no licence that is known"),
    ],
)
def test_a_licence_that_is_not_allowed_or_not_known_is_named(
    metadata: tuple[str, ...], text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    found = licences.find_problem(installed(tmp_path, *metadata, text=text))
    assert (said in found) if said else (found == "")


def test_an_exception_that_nothing_needs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(licences.EXCEPTIONS, "redis", "MIT all the same")
    assert licences.problems() == ["redis: the exception isn't needed any more"]


def test_what_is_locked_and_not_installed_has_no_licence_here() -> None:
    assert "not installed" in licences.find_problem(Locked("nobody-made-this", "1.0", None, ()))


def test_the_bill_names_every_distribution_with_version_and_licence(tmp_path: Path) -> None:
    document = json.loads(sbom.write_sbom(tmp_path).read_text())
    told = {one["name"]: one for one in document["components"]}
    locked = {one.name: one for file in RUNTIME_LOCKS for one in read_locked(BASE / file) if one.applies}
    assert {name: one["version"] for name, one in told.items()} == {
        name: one.version for name, one in locked.items()
    }
    for name, one in told.items():
        (licence,) = one["licenses"]
        assert licence.get("expression", licence.get("license", {}).get("id")), name
        assert one["purl"] == f"pkg:pypi/{name}@{locked[name].version}"
    assert told["certifi"]["scope"] == "optional"
    needs = {one["ref"]: one.get("dependsOn", []) for one in document["dependencies"]}
    assert f"sqlparse=={locked['sqlparse'].version}" in needs[f"django=={locked['django'].version}"]


def test_the_notice_names_every_included_work_and_its_licence() -> None:
    root = Path(__file__).parents[2]
    notice = (root / "NOTICE").read_text()
    for licence in sorted(root.glob("**/vendor/*/LICENSE")):
        if ".venv" not in licence.parts:
            assert str(licence.relative_to(root)) in notice
    assert "Apache License" in (root / "LICENSE").read_text()[:200]
