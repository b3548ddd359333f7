"""Help texts on pages: each named section exists in the guide and is shown without links or raw HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from console.units import help_pages


@pytest.mark.parametrize("part", sorted({part for parts in help_pages.PARTS.values() for part in parts}))
def test_a_part_stands_in_the_guide(part: str) -> None:
    assert help_pages.select_paragraphs(help_pages._blocks(), part)


def test_a_page_has_its_own_help_and_any_other_page_has_that_of_pending_changes() -> None:
    assert "Sending is tried six times" in help_pages.page_help("alerts")
    assert (
        help_pages.page_help("drafts_rule")
        == help_pages.page_help("drafts")
        != help_pages.page_help("policies")
    )
    assert help_pages.page_help("no_such_page") == help_pages.page_help("")
    assert "need a tick" in help_pages.page_help("")


def test_help_has_no_links_and_no_html_of_its_own(tmp_path: Path, settings: Any) -> None:
    settings.BASE_DIR = tmp_path
    guide = tmp_path / help_pages.GUIDE
    guide.parent.mkdir()
    guide.write_text(
        "# Guide\n\n### Pending changes\n\n<script>x</script> [a](javascript:x) *b*\n\n## Next\n\nnot this"
    )
    help_pages._blocks.cache_clear()
    help_pages._rendered.cache_clear()
    try:
        made = help_pages.page_help("")
    finally:
        help_pages._blocks.cache_clear()
        help_pages._rendered.cache_clear()
    assert made == "<p>&lt;script&gt;x&lt;/script&gt; [a](javascript:x) <em>b</em></p>\n"
    assert "<a" not in help_pages.page_help("journals") and "<img" not in help_pages.page_help("messages")
