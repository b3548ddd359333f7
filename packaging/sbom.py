"""Bill of materials of Sluice as a CycloneDX document.

Every distribution of the run-time locks, with licence and dependencies.

    python packaging/sbom.py [directory]        # by default dist/sluice.cdx.json
"""

from __future__ import annotations

import sys
from importlib.metadata import distribution
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from licences import find_licence
from locks import BASE, RUNTIME_LOCKS, read_locked
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NAME = "sluice.cdx.json"


def build_sbom() -> Bom:
    """Return the document. Distributions only for an identity provider or a group are optional in it."""
    made, components = Bom(), {}
    for file in RUNTIME_LOCKS:
        scope = ComponentScope.REQUIRED if file == RUNTIME_LOCKS[0] else ComponentScope.OPTIONAL
        for one in read_locked(BASE / file):
            if one.applies and one.name not in components:
                components[one.name] = Component(
                    name=one.name,
                    version=one.version,
                    type=ComponentType.LIBRARY,
                    scope=scope,
                    bom_ref=f"{one.name}=={one.version}",
                    purl=PackageURL("pypi", None, one.name, one.version),
                    licenses=[LicenseFactory().make_from_string(find_licence(one.name) or "NOASSERTION")],
                )
    application = Component(name="sluice", type=ComponentType.APPLICATION, bom_ref="sluice")
    made.metadata.component = application
    made.components.update(components.values())
    made.register_dependency(application, components.values())
    for name, component in components.items():
        made.register_dependency(
            component, [components[need] for need in _requirements(name) if need in components]
        )
    return made


def write_sbom(directory: Path) -> Path:
    """Write the document; return its path. Raises ValueError if it doesn't satisfy CycloneDX's schema."""
    text = JsonV1Dot6(build_sbom()).output_as_string(indent=2)
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        raise ValueError(f"not a CycloneDX document: {wrong}")
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / NAME
    path.write_text(text, encoding="utf-8")
    return path


def _requirements(name: str) -> list[str]:
    needs = map(Requirement, distribution(name).requires or ())
    return [
        canonicalize_name(one.name)
        for one in needs
        if one.marker is None or one.marker.evaluate({"extra": ""})
    ]


if __name__ == "__main__":
    print(write_sbom(Path(sys.argv[1]) if len(sys.argv) > 1 else BASE / "dist"))
