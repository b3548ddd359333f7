"""Every template compiles, so every template loads the tags and filters that it uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.template.loader import get_template

TEMPLATES = Path(__file__).resolve().parents[3] / "templates"


@pytest.mark.parametrize("name", sorted(str(one.relative_to(TEMPLATES)) for one in TEMPLATES.rglob("*.html")))
def test_a_template_loads_what_it_uses(name: str) -> None:
    get_template(name)
