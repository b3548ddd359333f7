"""A self-contained HTML page of texts, tables and SVG plots.

It has no script and no address, so it can be stored and sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from html import escape
from typing import Any, Final

import pyarrow as pa

from pipeline.plots import NARROW, PlotSpec, draw_svg

MAX_CELL: Final = 200
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2rem auto;padding:0 "
    "1rem;color:#1d2126;background:#fff}"
    "h1{font-size:1.6rem;margin:0}h2{font-size:1.2rem;margin:2.2rem 0 .4rem;border-bottom:1px "
    "solid #d5d9de;padding-bottom:.2rem}"
    "h3{font-size:1rem;margin:1.2rem 0 .3rem}.sub{color:#5d6670;margin:0}svg{display:block;"
    "width:100%;height:auto;margin:.6rem 0}"
    "table{border-collapse:collapse;width:100%;font-size:13px}th,td{text-align:left;"
    "padding:.2rem .5rem;border-bottom:1px solid #e6e9ec;"
    "overflow-wrap:anywhere;vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}"
    "dl{display:flex;flex-wrap:wrap;gap:1rem 2rem;margin:1rem "
    "0}dt{color:#5d6670;font-size:13px}dd{margin:0;font-size:1.3rem}"
    "@media(prefers-color-scheme:dark){body{color:#e4e7ea;background:#15181c}h2,th,td{border-color:#30363d}}"
    ".narrow{display:none}@media(max-width:600px){.wide{display:none}.narrow{display:block}"
    "body{margin:1rem auto}dl{display:block}dl div{display:flex;justify-content:space-between;"
    "gap:1rem;padding:.15rem 0}dd{font-size:1rem;font-weight:600}thead{display:none}"
    "tr{display:block;padding:.4rem 0;border-bottom:1px solid #d5d9de}td,td.n{display:flex;"
    "justify-content:space-between;gap:1rem;border:0;padding:.1rem "
    "0;text-align:right}td::before{content:attr(data-of);color:#5d6670;text-align:left;flex:none;"
    "max-width:45%}}"
    "@media print{body{margin:0;max-width:none}section{break-inside:avoid-page}}"
)


class HtmlPage:
    """Builder of a page. Parts are added from top to bottom; `to_html` returns the document."""

    def __init__(self, title: str, sub: str) -> None:
        self._title = title
        self._sections = [f"<h1>{escape(title)}</h1><p class='sub'>{escape(sub)}</p>"]

    def add_facts(self, facts: Mapping[str, Any]) -> None:
        """Add key figures with their names."""
        each = (
            f"<div><dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(_format_cell(value))}</dd></div>"
            for name, value in facts.items()
        )
        self._sections.append(f"<dl>{''.join(each)}</dl>")

    def add_section(self, title: str, sub: str = "") -> None:
        """Begin a section."""
        self._sections.append(
            f"<h2>{escape(title)}</h2>" + (f"<p class='sub'>{escape(sub)}</p>" if sub else "")
        )

    def add_paragraphs(self, sentence: str) -> None:
        """Add a paragraph."""
        self._sections.append(f"<p>{escape(sentence)}</p>")

    def add_plot(self, plot: PlotSpec, table: pa.Table) -> None:
        """Draw a table and add the plot."""
        self.add_drawn_plot(draw_svg(plot, table), draw_svg(plot, table, NARROW))

    def add_drawn_plot(self, wide: str, narrow: str) -> None:
        """Add a plot that `plots.draw_svg` drew in two sizes; the page's width selects one.

        Raises ValueError for any other text.
        """
        for svg in (wide, narrow):
            if not svg.startswith("<svg ") or "<script" in svg.lower():
                raise ValueError("not a plot of ours")
        self._sections.append(f"<div class='wide'>{wide}</div><div class='narrow'>{narrow}</div>")

    def add_table(self, title: str, table: pa.Table, max_rows: int) -> None:
        """Add the first `max_rows` rows of a table."""
        numbers = [
            pa.types.is_integer(field.type) or pa.types.is_floating(field.type) for field in table.schema
        ]
        kinds = [" class='n'" if number else "" for number in numbers]
        head = "".join(
            f"<th{kind}>{escape(name.replace('_', ' '))}</th>"
            for name, kind in zip(table.schema.names, kinds, strict=True)
        )
        rows = [
            "<tr>"
            + "".join(
                f"<td{kind} data-of='{escape(name.replace('_', ' '))}'>{escape(_format_cell(value))}</td>"
                for (name, value), kind in zip(row.items(), kinds, strict=True)
            )
            + "</tr>"
            for row in table.slice(0, max_rows).to_pylist()
        ]
        more = (
            f"<p class='sub'>The first {max_rows} of {table.num_rows:,}.</p>"
            if table.num_rows > max_rows
            else ""
        )
        body = (
            f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{more}"
            if rows
            else "<p class='sub'>None.</p>"
        )
        self._sections.append(f"<section><h3>{escape(title)}</h3>{body}</section>")

    def to_html(self) -> str:
        """Return the document. Its content security policy forbids scripts and fetches."""
        policy = "default-src 'none'; style-src 'unsafe-inline'"
        head = (
            f"<meta charset='utf-8'><meta http-equiv='Content-Security-Policy' content=\"{policy}\">"
            "<meta name='viewport' "
            f"content='width=device-width'><title>{escape(self._title)}</title><style>{_STYLE}</style>"
        )
        body = "".join(self._sections)
        return f"<!doctype html><html lang='en'><head>{head}</head><body>{body}</body></html>\n"


def _format_cell(value: Any) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"
