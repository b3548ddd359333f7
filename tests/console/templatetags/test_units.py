"""The tag library exposes the formatting functions unchanged and adds HTML only to times."""

from __future__ import annotations

from datetime import UTC, datetime

from django.template import engines

from console.templatetags.units import moment, sentence_html
from console.units.format import duration, size


def test_a_template_writes_what_python_writes() -> None:
    template = engines["django"].from_string("{% load units %}{{ bytes|size }}, {{ ms|duration }}")
    assert template.render({"bytes": 1536, "ms": 185_000}) == f"{size(1536)}, {duration(185_000)}"


def test_a_moment_carries_its_milliseconds_and_reads_as_utc_until_the_page_knows_better() -> None:
    at = datetime(2026, 11, 21, 14, 30, tzinfo=UTC)
    made = moment(at)
    assert f'data-ms="{int(at.timestamp() * 1000)}"' in made
    assert ">2026-11-21 14:30:00 UTC</time>" in made


def test_commands_in_a_sentence_stand_as_code_and_nothing_else_of_it_is_markup() -> None:
    assert (
        sentence_html("See `journal ls` & `<b>`.")
        == "See <code>journal ls</code> &amp; <code>&lt;b&gt;</code>."
    )
    assert sentence_html("A ` alone <b>") == "A ` alone &lt;b&gt;"
    assert sentence_html("") == ""
