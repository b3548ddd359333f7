"""Template filters: formats and labels of console/units, and their HTML."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from console.units import format as formats
from console.units import labels

register = template.Library()

for plain in (
    formats.size,
    formats.number,
    formats.number_exact,
    formats.duration,
    formats.seconds,
    formats.percent,
    formats.with_unit,
    formats.as_json,
    formats.humanise_sentence,
    formats.percent_of,
    formats.moment_in,
    formats.format_result_value,
    formats.words_of_key,
):
    register.filter(plain)
for code in (
    labels.signal_label,
    labels.reason_label,
    labels.cause_label,
    labels.mode_label,
    labels.pool_label,
    labels.setting_label,
    labels.path_label,
    labels.audit_label,
):
    register.filter(code)


register.filter(labels.signal_unit)


@register.filter
def action_imperative(code: object) -> str:
    """Return an action as an operator selects it: "offline it"."""
    return labels.action_label(code).does


@register.filter
def action_past(code: object) -> str:
    """Return an action in past tense for use in a sentence: "offlined"."""
    return labels.action_label(code).done.lower()


@register.filter
def sentence_html(sentence: object) -> SafeString:
    """Return an error's or state's sentence as HTML, with text in backquotes as code."""
    parts = str(sentence).split("`")
    if len(parts) % 2 == 0:
        return format_html("{}", sentence)
    marked = (
        (format_html("<code>{}</code>", part) if index % 2 else part,) for index, part in enumerate(parts)
    )
    return format_html_join("", "{}", marked)


@register.filter
def moment(value: Any, form: str = "clock") -> SafeString | str:
    """Return a <time> element, which a script converts to the operator's time zone; UTC until then.

    `form`: "clock", "zone" (with the zone's name), "minute" or "ago".
    """
    ms = formats.epoch_ms(value)
    if ms is None:
        return formats.NONE
    at = datetime.fromtimestamp(ms / 1000, UTC)
    return format_html(
        '<time datetime="{}" data-ms="{}" data-as="{}">{}</time>',
        at.isoformat(timespec="milliseconds"),
        ms,
        form,
        at.strftime("%Y-%m-%d %H:%M:%S UTC"),
    )


@register.filter
def lookup(table: Any, key: Any) -> Any:
    """Return an entry of a mapping; an empty mapping if it is missing."""
    return table.get(key, {}) if isinstance(table, dict) else {}
