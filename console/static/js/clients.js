// The clients page: a window of rows over the server's list. Rows are keyed by name and changed in place; the rows that are shown stay
// where they are while the pointer or the keyboard is among them, so that nothing slides under a hand. Filter and order live in
// the URL, to be pasted. Only the rows in sight are in the page; what is above and below is empty space of their height.
import { all, icon, make, named, one, setAttribute, setText, svg, UNCUT } from "./dom.js";
import { count, duration, percent } from "./format.js";
import { feed } from "./shell.js";
import { sparkline, trend } from "./sparkline.js";
import { chip, does } from "./states.js";
import { COLUMNS, DRAWN, readView, textOf, viewRequest, writeView } from "./clients_view.js";

const EDGE = 12, LEAST_HEIGHT = 28, MAX_ROWS = 200; // so near its edge the window moves on; rows are never lower
const narrow = matchMedia("(max-width: 45rem)"), NARROW_ROWS = 25;
const body = one("#clients tbody"), above = make("tr", { class: "spacer", "aria-hidden": "true" }, make("td", { colspan: DRAWN.length + 1 })), below = above.cloneNode(true);
const rows = new Map(), chosen = new Set();
const FILTERS = all("[data-filter]");
const OPTIONAL = new Set(["text", "percent", "rate", "age", "trend", "limit"]); // left out where there is little room
// What fills up, in one word: the table has no room for more.
const SIGNAL_WORDS = { outbound_bytes: "memory", outbound_messages: "memory", pool_memory: "pool", pool_disk: "pool’s disk", spool_bytes: "spool", spool_age: "offlined", oldest_age: "age", conflation_bytes: "conflation", backlog_bytes: "backlog", backlog_messages: "backlog", waiting_messages: "waiting", drain_rate: "rate", write_blocked: "blocked", window_full: "window", unacked_messages: "unacked", unacked_age: "unacked", ack_silence: "unacked", acknowledged_rate: "rate", pinned_bytes: "log pinned", user_pinned_bytes: "log pinned" };
let view = readView(location.search), offset = 0, rowsFrozen = false, order = [];

// In the page at once: what is in sight, and an edge on either side. More would only make each key of a search slower.
const wide = () => Math.min(MAX_ROWS, Math.ceil(innerHeight / LEAST_HEIGHT) + 2 * EDGE);
const limit = () => (narrow.matches ? NARROW_ROWS : wide());
const requestRows = () => feed.requestView({ ...viewRequest(view, offset, limit()), ...(rowsFrozen ? { names: order } : {}) });

function makeRow(client) {
  const line = sparkline(), box = make("input", { type: "checkbox", "aria-label": `Choose ${client.name}` });
  box.checked = chosen.has(client.name);
  box.addEventListener("change", () => choose(client.name, box.checked));
  const row = make("tr", { "data-name": client.name }, make("td", { class: "pick" }, box), ...DRAWN.map((column) => cell(column, client, line)));
  return { row, box, line, chips: {}, cells: Object.fromEntries(all("[data-cell]", row).map((one) => [one.dataset.cell, one])) };
}

function cell(column, client, line) {
  if (column.kind === "name") {
    const href = `/clients/${encodeURIComponent(client.name)}/`;
    return make("td", { class: "first" }, make("a", { class: "name", "data-row-link": "", href }, named(client.name)), copy(client.name));
  }
  const classes = [column.numeric ? "num" : "", OPTIONAL.has(column.kind) ? "optional" : ""].join(" ").trim();
  return make("td", { class: classes || null, "data-cell": column.key, "data-label": column.label }, column.kind === "trend" ? line.root : null);
}

/** Beside a name that may be cut: the whole of it. */
function copy(name) {
  if (name.length <= UNCUT) return null;
  return make("button", { class: "copy", type: "button", "data-copy": name }, icon("copy"), make("span", { class: "visually-hidden" }, "Copy the name"));
}

function fill(entry, client) {
  const now = feed.at ?? Date.now();
  setAttribute(entry.row, "class", `row-${String(client.health ?? "gone").replaceAll(" ", "-")}${client.disconnected ? " row-gone" : ""}${chosen.has(client.name) ? " chosen" : ""}`);
  for (const column of DRAWN) {
    const at = entry.cells[column.key], value = client[column.key];
    if (column.kind === "delivery" || column.kind === "health") {
      if (entry.chips[column.key] !== value) { entry.chips[column.key] = value; at.replaceChildren(value ? chip(value, column.kind) : ""); }
    } else if (column.kind === "limit" || column.kind === "then") forecast(entry, at, column.kind, client.forecast);
    else if (at && column.kind !== "trend") setText(at, textOf(column, client, now));
  }
  const values = feed.memory.lagsOf(client.name).map((sample) => sample[1]);
  entry.line.draw(values, `lag ${trend(values)} over the last ${values.length} samples`);
}

/** The limit it comes to first, and what happens there. Fullness alone is no alarm: colour is for an act that will be carried out soon. */
function forecast(entry, at, kind, found) {
  const near = found && found.percent >= 1, fires = found?.fires_in_ms ?? null;
  const text = kind === "limit" ? (near ? `${percent(found.percent)} ${SIGNAL_WORDS[found.signal] ?? ""}` : "none near") : fires === null ? "–" : `${does(found.action, found.mode)} in ${duration(fires)}`;
  const tone = fires === null || found.mode === "shadow" ? "" : fires < 600_000 ? "red" : "amber";
  const key = `${text} ${tone}`;
  setAttribute(at, "title", text);
  if (entry.chips[kind] === key) return;
  entry.chips[kind] = key;
  const bar = kind === "limit" && near ? [fullness(found.percent, tone)] : [];
  at.replaceChildren(...bar, make("span", { class: kind === "then" && tone ? `${tone} strong` : near && kind === "limit" ? "" : "muted" }, text));
}

function fullness(share, tone) {
  const fill = svg("rect", { width: Math.min(100, share), height: 8 });
  return svg("svg", { class: `bar small ${tone === "red" ? "bad" : tone === "amber" ? "warn" : ""}`, viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" }, fill);
}

function update() {
  if (!rowsFrozen) order = feed.order;
  draw(order.map((name) => feed.clients.get(name) ?? { name, delivery: "gone", disconnected: true }));
  counts();
}

function draw(clients) {
  spacer(above, narrow.matches ? 0 : offset);
  spacer(below, narrow.matches ? 0 : feed.total - offset - clients.length);
  if (body.firstChild !== above) body.prepend(above);
  let before = above;
  const present = new Set();
  for (const client of clients) {
    let entry = rows.get(client.name);
    if (!entry) rows.set(client.name, entry = makeRow(client));
    present.add(client.name);
    fill(entry, client);
    if (before.nextSibling !== entry.row) body.insertBefore(entry.row, before.nextSibling);
    before = entry.row;
  }
  for (const [name, entry] of rows) if (!present.has(name)) { entry.row.remove(); rows.delete(name); }
  if (body.lastChild !== below) body.append(below);
}

function spacer(row, number) {
  row.hidden = number <= 0;
  row.firstChild.style.height = `${Math.max(0, number) * rowHeight()}px`;
}

const rowHeight = () => [...rows.values()].find((entry) => entry.row.isConnected)?.row.offsetHeight || 28;

/** Move the window to the rows in sight, before its edge is. */
function follow() {
  if (narrow.matches || rowsFrozen || !feed.broker) return;
  const height = rowHeight(), top = body.getBoundingClientRect().top, first = Math.max(0, Math.floor(-top / height)), shown = Math.ceil(innerHeight / height), rowsNow = limit();
  const covered = (first >= offset + EDGE || offset === 0) && (first + shown <= offset + rowsNow - EDGE || offset + rowsNow >= feed.total);
  if (covered) return;
  const start = Math.max(0, Math.min(first - Math.floor((rowsNow - shown) / 2), Math.max(0, feed.total - rowsNow)));
  if (start !== offset) { offset = start; requestRows(); }
}

function counts() {
  const totals = feed.totals ?? { clients: feed.total, delivery: {}, health: {} };
  for (const group of FILTERS) {
    const tally = { "": totals.clients, ...totals[group.dataset.filter] };
    for (const button of all("[data-choice]", group)) {
      const number = tally[button.dataset.choice] ?? 0;
      setText(one("b", button), count(number));
      button.toggleAttribute("data-none", number === 0);
    }
  }
  setText(one("#shown"), feed.total === totals.clients ? `${count(feed.total)} clients` : `${count(feed.total)} of ${count(totals.clients)} clients`);
  setText(one("#matching-word"), feed.total === totals.clients ? `Act on all ${count(feed.total)}…` : `Act on the ${count(feed.total)} that match…`);
  const none = one("#none"), pages = one("#more");
  none.hidden = feed.total > 0;
  setText(none, totals.clients ? "No client matches. Clear the search or choose another delivery or health." : "No client is logged on.");
  pages.hidden = !narrow.matches || feed.total <= NARROW_ROWS;
  setText(one("span", pages), `${count(offset + 1)} to ${count(Math.min(offset + NARROW_ROWS, feed.total))} of ${count(feed.total)}`);
  one("[data-turn='-1']", pages).disabled = offset === 0;
  one("[data-turn='1']", pages).disabled = offset + NARROW_ROWS >= feed.total;
  setText(one("#held"), rowsFrozen ? "Rows stay in place while you point at or select one; figures update" : "");
  verdict(totals);
}

/** "3 stalled, 2 falling behind; 485 keep up." in place of a title. */
function verdict(totals) {
  const problems = [["stalled", "red"], ["flapping", "amber"], ["falling behind", "amber"], ["not recorded", "amber"]].filter(([key]) => totals.health?.[key]);
  const parts = problems.flatMap(([key, tone], index) => [index ? ", " : "", make("span", { class: tone }, `${count(totals.health[key])} ${key}`)]);
  const fine = `${count(totals.health?.["keeps up"] ?? 0)} keep up.`;
  const words = problems.length ? [...parts, "; ", fine] : [totals.clients ? fine : "No client is connected."];
  const title = one("#verdict"), text = words.map((word) => word.textContent ?? word).join("");
  if (title.textContent !== text) title.replaceChildren(...words);
}

function changeView(change) {
  view = { ...view, ...change };
  offset = 0;
  rowsFrozen = false;
  history.replaceState(null, "", `${location.pathname}${writeView(view, location.search)}`);
  showView();
  requestRows();
}

function showView() {
  const { search, delivery, health, sort } = viewRequest(view, 0, 0);
  const query = Object.entries({ search, delivery, health, sort, format: "csv" }).filter(([, text]) => text);
  setAttribute(one("#export"), "href", `/api/v1/clients?${new URLSearchParams(query)}`);
  for (const field of all("[data-view-query]")) field.value = location.search.slice(1);
  for (const [key, text] of Object.entries({ search, delivery, health })) for (const field of all(`#matching [name=${key}]`)) field.value = text;
  const here = addressOf(location.search);
  for (const link of all("#views a")) if (addressOf(new URL(link.href).search) === here) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  const field = one("#search");
  if (field.value !== view.q) field.value = view.q;
  for (const group of FILTERS) {
    for (const button of all("[data-choice]", group)) setAttribute(button, "aria-pressed", String(view[group.dataset.filter] === button.dataset.choice));
  }
  for (const header of all("th[data-key]")) {
    if (header.dataset.key === view.sort) setAttribute(header, "aria-sort", view.down ? "descending" : "ascending");
    else header.removeAttribute("aria-sort");
  }
}

/** An address's view in one spelling; columns that are those of the person aren't in every address. */
const addressOf = (query) => writeView(readView(query), query) || "?";

/** Freeze or release the rows. While they are frozen, the server sends exactly these rows, in this order. */
function setRowsFrozen(frozen) {
  if (rowsFrozen === frozen) return;
  rowsFrozen = frozen;
  if (!feed.paused) { requestRows(); if (feed.broker) update(); }
}

function choose(name, on) {
  if (on) chosen.add(name); else chosen.delete(name);
  rows.get(name)?.row.classList.toggle("chosen", on);
  bulk();
}

function bulk() {
  const form = one("#bulk");
  if (!form) return;
  form.hidden = chosen.size === 0;
  setText(one("b", form), `${chosen.size} chosen`);
  one("#bulk-names").replaceChildren(...[...chosen].slice(0, 50).map((name) => make("input", { type: "hidden", name: "client", value: name })));
  setText(one("#bulk-note"), chosen.size > 50 ? "The first 50 become pending changes." : "Each becomes a pending change with its effect.");
}

function selecting() {
  const selection = getSelection();
  return Boolean(selection && !selection.isCollapsed && body.contains(selection.anchorNode));
}

let typed = 0;
for (const header of all("th[data-key]")) {
  one("button", header).addEventListener("click", () => changeView({
    sort: header.dataset.key,
    down: view.sort === header.dataset.key ? !view.down : COLUMNS[header.dataset.key].numeric,
  }));
}
for (const group of FILTERS) {
  for (const button of all("[data-choice]", group)) button.addEventListener("click", () => changeView({ [group.dataset.filter]: button.dataset.choice }));
}
one("#search").addEventListener("input", (event) => { clearTimeout(typed); const text = event.target.value; typed = setTimeout(() => changeView({ q: text }), 60); });
one("#search").addEventListener("keydown", (event) => { if (event.key === "Escape") { clearTimeout(typed); changeView({ q: "" }); event.target.blur(); } });
for (const button of all("[data-turn]")) button.addEventListener("click", () => { offset = Math.max(0, offset + Number(button.dataset.turn) * NARROW_ROWS); requestRows(); one("#clients").scrollIntoView(); });
one("#bulk-clear")?.addEventListener("click", () => { chosen.clear(); for (const entry of rows.values()) { entry.box.checked = false; entry.row.classList.remove("chosen"); } bulk(); });
body.addEventListener("pointerenter", () => setRowsFrozen(true));
body.addEventListener("pointerleave", () => setRowsFrozen(selecting() || body.contains(document.activeElement)));
body.addEventListener("focusin", () => setRowsFrozen(true));
body.addEventListener("focusout", () => setTimeout(() => setRowsFrozen(selecting() || body.contains(document.activeElement) || body.matches(":hover")), 0));
document.addEventListener("selectionchange", () => { if (selecting()) setRowsFrozen(true); else if (rowsFrozen && !body.matches(":hover") && !body.contains(document.activeElement)) setRowsFrozen(false); });
addEventListener("scroll", () => { if (rowsFrozen && !body.contains(document.activeElement) && !selecting()) setRowsFrozen(false); requestAnimationFrame(follow); }, { passive: true });
narrow.addEventListener("change", () => { offset = 0; requestRows(); });
feed.addEventListener("change", () => { update(); follow(); });
showView();
requestRows();
