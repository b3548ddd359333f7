"""Plots state which lines they leave out, and label each line."""

from __future__ import annotations

from xml.etree import ElementTree

import pyarrow as pa

from pipeline.plots import COLOURS, MAX_BARS, NARROW, WIDE, PlotSize, PlotSpec, draw_svg, shorten_name


def texts(plot: PlotSpec, table: pa.Table, paper: PlotSize = WIDE) -> list[str]:
    root = ElementTree.fromstring(draw_svg(plot, table, paper))
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def make_plot_lines(clients: int) -> pa.Table:
    rows = [
        {"hour": hour, "client": f"client-{number}", "lag": hour * number}
        for number in range(clients)
        for hour in range(3)
    ]
    return pa.Table.from_pylist(rows)


def test_each_of_several_lines_is_named_and_one_by_itself_is_not() -> None:
    plot = PlotSpec("Lag", "hour", ("lag",), by="client")
    assert {"client-0", "client-1"} <= set(texts(plot, make_plot_lines(2)))
    assert "client-0" not in texts(plot, make_plot_lines(1))


def test_lines_that_have_no_colour_left_are_counted() -> None:
    told = texts(PlotSpec("Lag", "hour", ("lag",), by="client"), make_plot_lines(30))
    assert f"the first {len(COLOURS)} of 30" in told
    assert "client-8" not in told


def test_bars_of_several_columns_are_named_and_those_left_out_counted() -> None:
    table = pa.table(
        {"policy": [f"p{n}" for n in range(60)], "offlined": range(60), "disconnected": range(60)}
    )
    told = texts(PlotSpec("Acted on", "policy", ("offlined", "disconnected"), "bars"), table)
    assert {"offlined", "disconnected", f"the first {MAX_BARS} of 60"} <= set(told)


def test_a_legend_makes_the_plot_higher_and_stays_on_narrow_paper() -> None:
    root = ElementTree.fromstring(
        draw_svg(PlotSpec("Lag", "hour", ("lag",), by="client"), make_plot_lines(8), NARROW)
    )
    _, _, width, height = map(int, root.attrib["viewBox"].split())
    assert width == NARROW.width
    assert height > NARROW.height
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(rect.attrib["x"]) < NARROW.width - 60


def test_bytes_are_shown_in_binary_units() -> None:
    table = pa.table({"topic": ["a"], "bytes_a_day": [1_610_612_736]})
    assert "1.5 GiB" in texts(PlotSpec("Bytes a day", "topic", ("bytes_a_day",), "bars", unit="bytes"), table)


def test_names_that_begin_alike_stay_apart() -> None:
    assert shorten_name("carrier-board-frankfurt-gate-17-left") != shorten_name(
        "carrier-board-frankfurt-gate-18-left"
    )
    assert len(shorten_name("x" * 100)) == 28
    assert shorten_name("short") == "short"
