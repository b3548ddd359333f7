"""Bar charts as SVG, without a library."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

NAMES, WIDTH, ROW, TOP = 360, 420, 26, 44
OWN, OTHER, INK = "#0b6e4f", "#8a94a6", "#1c2430"


def bars(title: str, values: Mapping[str, float], form: str, highlighted: str = "Sluice") -> str:
    """Return a chart with one bar for each value; bars of `highlighted` have their own colour."""
    largest = max(values.values(), default=1) or 1
    height = TOP + ROW * len(values) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {NAMES + WIDTH + 120} {height}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}" role="img">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="12" y="26" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    for index, (name, value) in enumerate(values.items()):
        y = TOP + index * ROW
        long = max(1.0, WIDTH * max(value, 0) / largest)
        colour = OWN if name.startswith(highlighted) else OTHER
        lines += [
            f'<text x="{NAMES - 8}" y="{y + 16}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{NAMES}" y="{y + 3}" width="{long:.1f}" height="{ROW - 8}" rx="2" fill="{colour}"/>',
            f'<text x="{NAMES + long + 6:.1f}" y="{y + 16}">{escape(form.format(value))}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
