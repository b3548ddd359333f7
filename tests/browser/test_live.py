"""Live pages: snapshot and deltas, a stable order while the pointer is over the table, pause, stale data,
filters in the URL.
"""

from __future__ import annotations

import os
import re
import signal

from playwright.sync_api import Page, expect

from tests.browser.conftest import Console
from tests.browser.test_jobs import discard_pending_changes
from tests.browser.test_pages import AXE, RUN_AXE, open_page

ROWS = "#clients tbody tr[data-name]"
LAG = '#clients tr[data-name="board-jfk"] [data-cell="lag_messages"]'


def names(page: Page) -> list[str]:
    """Return the names of the displayed clients, in order."""
    return page.locator(ROWS).evaluate_all("rows => rows.map((row) => row.dataset.name)")


def test_numbers_change_without_a_reload(page: Page) -> None:
    open_page(page, "/clients/")
    lag = page.locator(LAG)
    before = lag.text_content()
    assert before is not None
    expect(lag).not_to_have_text(before)
    expect(page.locator('tr[data-name="board-jfk"] .spark-line')).to_have_attribute(
        "points", re.compile(r"\d,[\d.]+ \d")
    )


def test_a_state_is_a_word_and_an_icon_besides_its_colour(page: Page) -> None:
    open_page(page, "/clients/")
    for column, word in (("delivery", "Offlined"), ("health", "Stalled")):
        state = page.locator(f'#clients tr[data-name="board-jfk"] [data-cell="{column}"] .state')
        expect(state).to_have_text(word)
        expect(state.locator("svg use")).to_have_count(1)


def test_the_worst_health_stands_first(page: Page) -> None:
    open_page(page, "/clients/")
    expect(page.locator(ROWS).first).to_have_attribute("data-name", "board-jfk")
    expect(page.get_by_role("columnheader", name="Health")).to_have_attribute("aria-sort", "ascending")


def test_delivery_and_health_filter_each_and_a_column_can_be_chosen(page: Page) -> None:
    open_page(page, "/clients/?health=keeps+up")
    page.get_by_role("group", name="Delivery").get_by_role("button", name="Draining").click()
    assert page.url.endswith("/clients/?delivery=draining&health=keeps+up")
    expect(page.locator(ROWS)).to_have_count(1)
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Protocol").check()
    page.get_by_role("button", name="Show these").click()
    expect(page.get_by_role("columnheader", name="Protocol")).to_be_visible()
    expect(page.locator('#clients tr[data-name="delay-mailer"] [data-cell="protocol"]')).to_have_text(
        "native"
    )
    assert "columns=protocol" in page.url and "delivery=draining" in page.url
    page.goto("/clients/")
    expect(page.get_by_role("columnheader", name="Protocol")).to_be_visible()
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Protocol").uncheck()
    page.get_by_role("button", name="Show these").click()
    expect(page.get_by_role("columnheader", name="Protocol")).to_have_count(0)


def test_a_view_is_kept_and_everyone_it_shows_acted_on_by_keyboard_alone(page: Page) -> None:
    discard_pending_changes(page)
    open_page(page, "/clients/?q=carrier&delivery=live")
    page.get_by_text("Save this view…").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("Live carriers")
    page.keyboard.press("Enter")
    expect(page.locator("#messages")).to_contain_text("The view “Live carriers” is saved")
    tab = page.get_by_role("navigation", name="Views").get_by_role("link", name="Live carriers")
    expect(tab).to_have_attribute("aria-current", "page")
    page.get_by_label("Search clients").fill("carrier-u")
    expect(tab).not_to_have_attribute("aria-current", "page")
    tab.focus()
    page.keyboard.press("Enter")
    expect(page.locator(ROWS)).to_have_count(14)
    summary = page.locator("#matching > summary")
    expect(summary).to_contain_text("Act on the 14 that match")
    summary.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#pending-changes")).to_contain_text("Pause 14 clients that matched “carrier”, live")
    expect(page.locator("#pending-changes")).to_contain_text("and 2 more")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert page.evaluate(RUN_AXE) == []
    page.get_by_role("button", name="Discard").click()
    page.get_by_text("Edit views…").click()
    page.get_by_role("button", name="Delete the view Live carriers").click()
    expect(page.locator("#messages")).to_contain_text("is deleted")
    expect(tab).to_have_count(0)


def test_filter_state_and_order_stand_in_the_url(page: Page) -> None:
    open_page(page, "/clients/")
    page.get_by_label("Search clients").fill("carrier")
    page.get_by_role("group", name="Delivery").get_by_role("button", name="Live").click()
    page.get_by_role("columnheader", name="Client").get_by_role("button").click()
    assert page.url.endswith("/clients/?q=carrier&delivery=live&sort=name")
    expect(page.locator(ROWS)).to_have_count(14)
    expect(page.locator(ROWS).first).to_have_attribute("data-name", "carrier-aa")
    assert names(page) == sorted(names(page))
    page.goto(page.url)
    expect(page.get_by_label("Search clients")).to_have_value("carrier")
    expect(page.locator(ROWS)).to_have_count(14)


def test_a_second_click_turns_the_order(page: Page) -> None:
    open_page(page, "/clients/")
    header = page.get_by_role("columnheader", name="Client")
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "descending")
    expect(page.locator(ROWS).last).to_have_attribute("data-name", "board-jfk")
    assert names(page) == sorted(names(page), reverse=True)


def test_rows_stay_under_the_pointer_while_numbers_go_on(page: Page) -> None:
    open_page(page, "/clients/?sort=lag_messages")
    page.locator(LAG).hover()
    expect(page.get_by_text("Rows stay in place")).to_be_visible()
    held, before = names(page), page.locator(LAG).text_content()
    assert before is not None
    expect(page.locator(LAG)).not_to_have_text(before)
    assert names(page) == held
    page.locator(".page-head").hover()
    expect(page.get_by_text("Rows stay in place")).to_be_hidden()


def test_a_part_of_a_plot_stands_in_the_url_and_can_be_gone_back_from(page: Page) -> None:
    open_page(page, "/clients/board-jfk/?range=3h")
    over = page.locator("#lane-lag .u-over")
    expect(over).to_be_visible()
    box = over.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 20, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"range=3h&from=\d+&to=\d+$"))
    whole = page.get_by_role("button", name="Whole range")
    expect(whole).to_be_visible()
    page.reload()
    expect(whole).to_be_visible()
    page.go_back()
    expect(page).to_have_url(re.compile(r"range=3h$"))
    expect(whole).to_be_hidden()


def test_a_part_that_no_clock_reaches_is_none(page: Page) -> None:
    open_page(page, "/clients/board-jfk/?range=3h&from=1&to=1e300")
    expect(page.locator("#lane-lag .u-over")).to_be_visible()
    expect(page.get_by_role("button", name="Whole range")).to_be_hidden()


def test_pausing_keeps_what_is_shown(page: Page) -> None:
    open_page(page, "/clients/")
    page.keyboard.press("p")
    expect(page.locator("#feed")).to_have_attribute("data-status", "paused")
    before = page.locator(LAG).text_content()
    page.wait_for_function(
        "at => window.performance.now() > at + 2500", arg=page.evaluate("performance.now()")
    )
    assert page.locator(LAG).text_content() == before
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#feed")).to_have_attribute("data-status", "live")
    expect(page.locator(LAG)).not_to_have_text(before or "")


def test_a_feed_that_falls_silent_is_marked_and_comes_back(page: Page, console: Console) -> None:
    open_page(page, "/")
    os.kill(console.process.pid, signal.SIGSTOP)
    try:
        expect(page.locator("#feed")).to_have_attribute("data-status", "stale", timeout=12_000)
        expect(page.locator("#feed")).to_contain_text("since")
    finally:
        os.kill(console.process.pid, signal.SIGCONT)
    expect(page.locator("#feed")).to_have_attribute("data-status", "live", timeout=12_000)


def test_deltas_lead_to_what_a_fresh_snapshot_says(page: Page) -> None:
    open_page(page, "/runs/")
    assert page.evaluate("""async () => {
        const { Feed } = await import("/static/js/feed.js");
        const feed = new Feed("/live/", "test");
        const a = { name: "a", lag_messages: 1 }, b = { name: "b", lag_messages: 2 };
        const c = { name: "c", lag_messages: 3 };
        feed.apply({ type: "snapshot", seq: 1, at: 1000, status: { revision: 1 }, clients: [a, b] });
        feed.apply({
            type: "delta", seq: 2, at: 2000, status: { revision: 2 },
            changed: [{ ...a, lag_messages: 9 }, c], removed: ["b"],
        });
        const follows = feed.apply({ type: "decision", seq: 3, decision: { client: "a" } });
        const gap = feed.apply({ type: "delta", seq: 9, at: 3000, status: {}, changed: [], removed: ["a"] });
        return { clients: [...feed.clients.values()], revision: feed.broker.revision, follows, gap };
    }""") == {
        "clients": [{"name": "a", "lag_messages": 9}, {"name": "c", "lag_messages": 3}],
        "revision": 2,
        "follows": True,
        "gap": False,
    }


def test_of_thousands_only_the_rows_in_sight_are_in_the_page(page: Page) -> None:
    open_page(page, "/clients/")
    assert page.evaluate("""async () => {
        const { feed } = await import("/static/js/shell.js");
        const asked = [];
        feed.requestView = (want) => asked.push(want);
        // Snapshots of the server's 18 clients would interfere: close this connection, and open no other.
        window.WebSocket = class extends EventTarget { static OPEN = 1; readyState = 0; };
        const over = new Promise((done) => feed.socket.addEventListener("close", done));
        feed.socket.close();
        await over;
        const window_ = (offset) => Array.from({ length: 100 }, (_, i) => ({
            name: `c${offset + i}`, delivery: "live", health: "keeps up", lag_messages: 1, lag_ms: 1,
        }));
        const told = (offset) => ({
            type: "snapshot", seq: 1, at: Date.now(), status: {}, total: 10000,
            totals: { clients: 10000, delivery: {}, health: {} },
            order: window_(offset).map((one) => one.name), clients: window_(offset),
        });
        feed.apply(told(0));
        const rows = () => document.querySelectorAll("#clients tbody tr[data-name]").length;
        const first = rows(), tall = document.documentElement.scrollHeight > 10000 * 25;
        scrollTo(0, 140000);
        while (!(asked.at(-1)?.offset > 4000)) await new Promise((done) => setTimeout(done, 20));
        const wanted = asked.at(-1);
        const near = wanted.offset > 4000 && wanted.offset < 6000;
        return { first, tall, view: wanted.view, near, limit: wanted.limit };
    }""") == {"first": 100, "tall": True, "view": "clients", "near": True, "limit": 57}


def test_several_clients_are_chosen_and_become_pending_changes_together(page: Page) -> None:
    discard_pending_changes(page)
    open_page(page, "/clients/?q=carrier")
    expect(page.locator(ROWS)).to_have_count(14)
    for name in ("carrier-dl", "carrier-ev"):
        page.get_by_label(f"Choose {name}").check()
    expect(page.locator("#bulk")).to_contain_text("2 chosen")
    page.locator("#bulk").get_by_role("button", name="Pause…").click()
    expect(page.locator("#pending-changes")).to_contain_text("2 changes")
    page.get_by_role("button", name="Discard").click()


def test_where_websockets_are_cut_pages_go_on_by_asking(page: Page) -> None:
    page.add_init_script("""
        window.WebSocket = class extends EventTarget {
            static OPEN = 1;
            constructor() {
                super();
                this.readyState = 3;
                setTimeout(() => this.dispatchEvent(new CloseEvent("close", { code: 1006 })), 10);
            }
        };
    """)
    page.goto("/clients/")
    expect(page.locator(ROWS)).to_have_count(18, timeout=12_000)
    lag = page.locator(LAG)
    expect(lag).not_to_have_text(lag.text_content() or "", timeout=12_000)


def test_the_overview_begins_with_a_verdict_and_shows_lag_by_client(page: Page) -> None:
    open_page(page, "/")
    expect(page.get_by_role("heading", level=1)).to_contain_text("1 client is stalled")
    expect(page.locator("#rates canvas")).to_be_visible()
    expect(page.get_by_role("meter", name="shared, memory")).to_have_attribute(
        "aria-valuetext", "1.82 GiB of 2.40 GiB · 76 %"
    )
    first = page.locator("#heat .heat-row").first
    expect(first).to_have_attribute("href", "/clients/board-jfk/")
    expect(first.locator(".runs i").last).to_have_class(re.compile("cell-5"))
    expect(page.locator("#pool-words")).to_contain_text(re.compile("pool shared (is full \\(|is in use; )"))
    # The large cone belongs to the worst pool. The other pools and the disk have small ones.
    expect(page.locator("#pools .cone:visible")).to_have_count(1)
    expect(page.get_by_role("img", name="Pool websocket, memory of the last hour")).to_have_accessible_name(
        re.compile("not full within 45 min$")
    )
    expect(page.locator("#pools .cone:visible .cone-wide")).to_have_attribute("points", re.compile(r"^\d"))
    expect(page.get_by_role("img", name="The log on its disk: not full within")).to_be_visible()
    expect(page.locator("#delay-words")).to_contain_text("0.9 ms half of all 14 ms 99 of 100")
    expect(page.locator("#delays .u-legend")).to_contain_text("99 of 100 within")
    page.get_by_role("link", name="24 h").click()
    expect(page).to_have_url(re.compile(r"/\?range=24h$"))


def test_a_cone_is_as_wide_as_the_minutes_before_differed(page: Page) -> None:
    open_page(page, "/")
    ahead = """async ([used, limit, minute = 60]) => {
        const { forecast } = await import("/static/js/forecast.js");
        return forecast(used.map((one, at) => [1_000_000 + minute * at / 6, one]), limit, minute);
    }"""

    def of(*minutes: float) -> list[float]:
        """Return ten-second samples that grow by these amounts per minute."""
        used = [1_000.0]
        for grew in minutes:
            used += [used[-1] + grew * step / 6 for step in range(1, 7)]
        return used

    steady = page.evaluate(ahead, [of(*[10.0] * 15), 1_250.0])
    assert (steady["soonest"], steady["full"], steady["latest"]) == (600, 600, 600)
    assert all(abs(one[1] - one[2]) < 1e-6 for one in steady["points"])
    unsteady = page.evaluate(ahead, [of(*[0.0, 20.0] * 7, 10.0), 1_250.0])
    assert unsteady["soonest"] < unsteady["full"] == 600 < unsteady["latest"]
    wide = [high - low for _, _, high, low in unsteady["points"]]
    assert wide[0] == 0 and wide == sorted(wide)
    assert page.evaluate(ahead, [of(*[-5.0] * 15), 1_250.0])["soonest"] is None
    assert page.evaluate(ahead, [of(*[10.0] * 4), 1_250.0]) is None
    assert page.evaluate(ahead, [[], 1_250.0]) is None
    days = page.evaluate(ahead, [of(*[10.0] * 15), 1_250.0, 8_640])
    assert (days["soonest"], days["points"][-1][0] - days["points"][0][0]) == (86_400, 45 * 8_640)


def test_what_one_has_seen_isnt_told_again(page: Page) -> None:
    open_page(page, "/")
    expect(page.locator("#since-list")).to_contain_text("Offlined")
    page.get_by_role("button", name="Mark as seen").click()
    expect(page.locator("#since-list")).not_to_contain_text("Offlined")


def test_a_clients_timeline_has_lanes_over_one_axis(page: Page) -> None:
    open_page(page, "/clients/board-jfk/")
    expect(page.locator("#lane-lag canvas")).to_be_visible()
    expect(page.locator("#lane-states .state-span").first).to_be_visible()
    expect(page.locator("#lane-lag .u-value").last).not_to_have_text("–")
    page.get_by_role("link", name="15 min").click()
    expect(page).to_have_url(re.compile("range=15m"))


def test_what_is_shown_can_be_exported(page: Page) -> None:
    open_page(page, "/clients/?q=carrier&delivery=live")
    with page.expect_download() as begun:
        page.get_by_role("link", name="Export").click()
    lines = begun.value.path().read_text().splitlines()
    assert len(lines) == 15 and all("carrier-" in line for line in lines[1:])
    open_page(page, "/decisions/?client=board-jfk")
    with page.expect_download() as begun:
        page.get_by_role("link", name="Export").click()
    assert len(begun.value.path().read_text().splitlines()) == 2


def test_the_flow_singles_out_who_is_slow_and_leads_on(page: Page) -> None:
    open_page(page, "/flow/")
    slow = page.locator('.flow-clients[data-name="board-jfk"]')
    expect(slow).to_have_class(re.compile(r"\bstalled\b"))
    expect(page.locator('.flow-clients[data-name="carrier-*"]')).to_have_count(1)
    expect(page.locator("#flow-note")).to_contain_text("over the last")
    feeding = page.locator('.flow-publishers[data-name="feed-publisher"] .flow-rate')
    expect(feeding).to_have_text(re.compile(r"[1-9][\d,]* /s"))
    page.get_by_text("The same as tables").click()
    expect(page.locator("#flow-handed tbody")).to_contain_text("Stalled")
    slow.focus()
    expect(page.locator(".flow-band.on")).not_to_have_count(0)
    page.keyboard.press("Enter")
    page.wait_for_url("**/clients/board-jfk/")
    expect(page.locator("#feed")).to_have_attribute("data-status", "live")
