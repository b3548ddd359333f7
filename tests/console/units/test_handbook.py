"""The help on the pages: each part that is named stands in the guide, and comes without links or HTML of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from console.units import handbook


@pytest.mark.parametrize("part", sorted({part for parts in handbook.PARTS.values() for part in parts}))
def test_a_part_stands_in_the_guide(part: str) -> None:
    assert handbook.taken(handbook._blocks(), part)


def test_a_page_has_its_own_help_and_any_other_the_trays() -> None:
    assert "Sending is tried six times" in handbook.help_of("alerts")
    assert handbook.help_of("drafts_rule") == handbook.help_of("drafts") != handbook.help_of("policies")
    assert handbook.help_of("no_such_page") == handbook.help_of("")
    assert "with a tick" in handbook.help_of("")


def test_help_has_no_links_and_no_html_of_its_own(tmp_path: Path, settings: Any) -> None:
    settings.BASE_DIR = tmp_path
    guide = tmp_path / handbook.GUIDE
    guide.parent.mkdir()
    guide.write_text(
        "# Guide\n\n### The tray\n\n<script>x</script> [a](javascript:x) *b*\n\n## Next\n\nnot this"
    )
    handbook._blocks.cache_clear()
    handbook._rendered.cache_clear()
    try:
        made = handbook.help_of("")
    finally:
        handbook._blocks.cache_clear()
        handbook._rendered.cache_clear()
    assert made == "<p>&lt;script&gt;x&lt;/script&gt; [a](javascript:x) <em>b</em></p>\n"
    assert "<a" not in handbook.help_of("journals") and "<img" not in handbook.help_of("messages")
