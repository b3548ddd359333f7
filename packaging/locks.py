"""Lock files of `make lock` as data: distributions with version, marker and hashes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

BASE = Path(__file__).resolve().parent.parent
RUNTIME_LOCKS = ("requirements.txt", "requirements-oidc.txt", "requirements-group.txt")
"""Lock files of distributions installed where Sluice runs: always, with an identity provider, in a group."""


class Locked(NamedTuple):
    """A distribution as a lock file pins it."""

    name: str
    version: str
    marker: Marker | None
    hashes: tuple[str, ...]

    @property
    def applies(self) -> bool:
        """Whether it is installed on this Python."""
        return self.marker is None or self.marker.evaluate()


def read_locked(path: Path) -> list[Locked]:
    """Return the pins of a lock file. Raises ValueError for any line that isn't a pin with hashes."""
    found = []
    for line in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        words = line.partition("#")[0].split(" --hash=")
        if not words[0].strip():
            continue
        if words[0].lstrip().startswith("-"):
            raise ValueError(f"{path.name}: {line!r} isn't a distribution")
        requirement = Requirement(words[0].strip())
        version = str(requirement.specifier).removeprefix("==")
        if str(requirement.specifier) != f"=={version}" or len(words) < 2:
            raise ValueError(f"{path.name}: {words[0]!r} has no exact version, or no hash")
        hashes = tuple(word.strip() for word in words[1:])
        found.append(Locked(canonicalize_name(requirement.name), version, requirement.marker, hashes))
    return found
