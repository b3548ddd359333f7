"""Every address of the API is in docs/api.md."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_table_has_every_collection_of_the_schema() -> None:
    paths = yaml.safe_load((DOCS / "openapi.yaml").read_text())["paths"]
    collections = {path.removeprefix("/api/v1/").split("/")[0] for path in paths}
    table = (DOCS / "api.md").read_text().split("## Addresses")[1].split("\n## ")[0]
    named = {
        name.split("/")[0]
        for code in re.findall(r"`([^`]+)`", table)
        for name in re.findall(r"(?:^|[A-Z] )([a-z]+)", code)
    }
    assert len(collections) > 15 and collections - named <= {"schema"}
