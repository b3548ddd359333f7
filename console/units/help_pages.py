"""Help on each page, taken from docs/operators-guide.md so that page and guide never disagree."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from django.conf import settings
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt

GUIDE: Final = Path("docs") / "operators-guide.md"
"""Path of the guide below the base directory."""
PENDING_CHANGES: Final = "### Pending changes"
"""Heading of the section about pending changes."""
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "overview": ("**The overview**", "**As it was.**", "**The top of every page**", "**Times**"),
    "clients": ("**Two words for each client.**", "**As it was.**", PENDING_CHANGES),
    "client": ("**Two words for each client.**", "**A client's page**", "**As it was.**", PENDING_CHANGES),
    "flow": ("**Flow**",),
    "decisions": ("**Decisions**",),
    "alerts": ("## Alerts",),
    "policies": ("## Policies", "**As it was.**", PENDING_CHANGES),
    "drafts": ("**Drafts**", "**Preview**", "**Publish**", "**Staged rollout.**"),
    "journals": ("## Journals", PENDING_CHANGES),
    "messages": ("## Messages",),
    "replication": ("**Replication**",),
    "replays": ("## Managed replays",),
    "actions": ("## Actions",),
    "settings": ("**Settings**",),
}
"""Sections and paragraphs of the guide for each page, by the beginning of the page's name.

A heading means everything up to the next heading. Other texts are the beginning of a paragraph.
"""
ELSEWHERE: Final = (PENDING_CHANGES,)
"""Sections for pages that `PARTS` lacks."""


def page_help(page: str) -> SafeString:
    """Return a page's help as HTML."""
    key = next((one for one in (page, page.partition("_")[0]) if one in PARTS), "")
    return _rendered(PARTS.get(key, ELSEWHERE))


@lru_cache(maxsize=64)
def _rendered(parts: tuple[str, ...]) -> SafeString:
    """Return parts of the guide as HTML.

    Raw HTML is escaped. Links are removed, because they point to files beside the guide, not to pages.
    """
    reader = MarkdownIt("commonmark", {"html": False})
    for rule in ("link_open", "link_close"):
        reader.renderer.rules[rule] = lambda *_: ""  # type: ignore[attr-defined]
    blocks = _blocks()
    return mark_safe("".join(reader.render("\n\n".join(select_paragraphs(blocks, part))) for part in parts))


def select_paragraphs(blocks: list[str], part: str) -> list[str]:
    """Return the paragraphs that a part selects."""
    if not part.startswith("#"):
        return [block for block in blocks if block.startswith(part)]
    if part not in blocks:
        return []
    begin = blocks.index(part) + 1
    end = next((at for at, block in enumerate(blocks[begin:], begin) if block.startswith("#")), len(blocks))
    return blocks[begin:end]


@lru_cache(maxsize=1)
def _blocks() -> list[str]:
    """Return the guide's paragraphs without pictures; empty if the guide is not installed."""
    try:
        text = (Path(settings.BASE_DIR) / GUIDE).read_text(encoding="utf-8")
    except OSError:
        return []
    return [
        block.strip("\n")
        for block in text.split("\n\n")
        if block.strip() and not block.lstrip().startswith("![")
    ]
