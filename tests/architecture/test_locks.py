"""Lock files of `make lock`: each distribution is pinned with hashes, and complete on every supported
Python.
"""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

import pytest
from locks import BASE, RUNTIME_LOCKS, Locked, read_locked
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCKS = sorted(BASE.glob("requirements*.txt"))
EARLIER = {
    "requirements-dev.txt": RUNTIME_LOCKS,
    "requirements-oidc.txt": RUNTIME_LOCKS[:1],
    "requirements-group.txt": RUNTIME_LOCKS[:1],
}
"""Distributions that are installed before these locks."""
PYTHONS = ("3.11.0", "3.11.9", "3.12.0", "3.13.0", "3.14.0")


def requirement_lines(path: Path) -> list[Requirement]:
    """Return the lines of a requirements source that name a distribution."""
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("-c ")]


def needs_of(one: Locked, extras: set[str], python: str) -> list[Requirement]:
    """Return the requirements of an installed distribution on a Python version."""
    where = {"python_full_version": python, "python_version": ".".join(python.split(".")[:2])}
    needs = map(Requirement, distribution(one.name).requires or ())
    return [
        need
        for need in needs
        if need.marker is None
        or any(need.marker.evaluate({**where, "extra": extra}) for extra in extras | {""})
    ]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_lock_pins_what_its_source_names_and_nothing_says_where_it_comes_from(path: Path) -> None:
    locked = {one.name: one for one in read_locked(path)}
    for wanted in requirement_lines(path.with_suffix(".in")):
        assert str(wanted.specifier) == f"=={locked[canonicalize_name(wanted.name)].version}", wanted
    assert all(re.fullmatch("sha256:[0-9a-f]{64}", one) for each in locked.values() for one in each.hashes)
    assert "://" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
@pytest.mark.parametrize("python", PYTHONS)
def test_a_lock_has_what_its_distributions_need(path: Path, python: str) -> None:
    where = {"python_full_version": python, "python_version": ".".join(python.split(".")[:2])}
    names = (*EARLIER.get(path.name, ()), path.name)
    there = {
        one.name: one.version
        for name in names
        for one in read_locked(BASE / name)
        if one.marker is None or one.marker.evaluate(where)
    }
    extras: dict[str, set[str]] = {}
    for name in names:
        for wanted in requirement_lines((BASE / name).with_suffix(".in")):
            extras.setdefault(canonicalize_name(wanted.name), set()).update(wanted.extras)
    todo = [one for one in read_locked(path) if one.applies and there.get(one.name) == one.version]
    assert todo
    for one in todo:
        for need in needs_of(one, extras.get(one.name, set()), python):
            version = there.get(canonicalize_name(need.name))
            assert version is not None, f"{one.name} needs {need}"
            assert need.specifier.contains(version, prereleases=True), (
                f"{one.name} needs {need}, not {version}"
            )


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_what_is_installed_is_what_is_locked(path: Path) -> None:
    locked = {one.name: one.version for one in read_locked(path) if one.applies}
    assert {name: distribution(name).version for name in locked} == locked


def test_two_locks_never_disagree() -> None:
    versions: dict[str, set[str]] = {}
    for path in LOCKS:
        for one in read_locked(path):
            if one.applies:
                versions.setdefault(one.name, set()).add(one.version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    "line", ["redis>=8 --hash=sha256:00", "redis==8.1.0", "--index-url somewhere", "redis --hash=sha256:00"]
)
def test_a_line_without_a_version_or_a_hash_is_refused(line: str, tmp_path: Path) -> None:
    (path := tmp_path / "requirements.txt").write_text(f"{line}\n")
    with pytest.raises(ValueError, match=r"requirements\.txt"):
        read_locked(path)
