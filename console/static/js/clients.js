// The clients page: a live table. Rows are keyed by name and changed in place; their order is held while the pointer or the
// keyboard is among them, so that nothing slides under a hand. Filter, state and order live in the URL, to be pasted.
import { all, make, one, setAttribute, setText } from "./dom.js";
import { bytes, count, duration, percent, rate } from "./format.js";
import { feed } from "./shell.js";
import { sparkline, trend } from "./sparkline.js";
import { chip } from "./states.js";
import { COLUMNS, arrange, readView, writeView } from "./clients_view.js";

const PAGE = 200; // rows drawn at once; "show more" adds as many
const body = one("#clients tbody");
const rows = new Map();
let view = readView(location.search);
let limit = PAGE;
let held = false;
let order = [];

function makeRow(client) {
  const line = sparkline();
  const row = make("tr", { "data-name": client.name },
    make("td", { class: "first" }, make("a", { class: "client-name", "data-row-link": "", href: `/clients/${encodeURIComponent(client.name)}/` }, client.name)),
    make("td", { "data-cell": "state", "data-label": "State" }),
    make("td", { class: "optional", "data-cell": "transport", "data-label": "Transport" }),
    cell("lag_ms", "Lag"), cell("lag_messages", "Messages"), cell("lag_bytes", "Bytes"),
    make("td", { "data-cell": "trend", "data-label": "Trend" }, line.root),
    cell("memory_percent", "Memory", true), cell("spool_bytes", "Spool"), cell("rate_out_messages", "Out /s", true), cell("connected_ms", "Connected", true));
  return { row, line, state: null, cells: Object.fromEntries(all("[data-cell]", row).map((one) => [one.dataset.cell, one])) };
}

const cell = (key, label, optional = false) => make("td", { class: `num${optional ? " optional" : ""}`, "data-cell": key, "data-label": label });

function fill(entry, client) {
  const { cells } = entry;
  if (entry.state !== client.state) {
    entry.state = client.state;
    cells.state.replaceChildren(chip(client.state));
    setAttribute(entry.row, "class", `row-${client.state}`);
  }
  setText(cells.transport, client.transport ?? "");
  setText(cells.lag_ms, client.lag_messages ? duration(client.lag_ms) : "0");
  setText(cells.lag_messages, count(client.lag_messages));
  setText(cells.lag_bytes, bytes(client.lag_bytes));
  setText(cells.memory_percent, percent(client.memory_percent));
  setText(cells.spool_bytes, client.spool_bytes ? bytes(client.spool_bytes) : "–");
  setText(cells.rate_out_messages, rate(client.rate_out_messages));
  setText(cells.connected_ms, client.connected_at ? duration((feed.at ?? Date.now()) - client.connected_at) : "–");
  const values = feed.memory.lagsOf(client.name).map((sample) => sample[1]);
  entry.line.draw(values, `lag ${trend(values)} over the last ${values.length} samples`);
}

function update() {
  const clients = [...feed.clients.values()];
  const wanted = held ? keepOrder() : arrange(clients, view);
  if (!held) order = wanted.map((client) => client.name);
  draw(wanted.slice(0, limit));
  counts(clients, wanted.length);
}

/** While the order is held, rows stay where they are; a client that logs off is greyed instead of vanishing. */
function keepOrder() {
  return order.map((name) => feed.clients.get(name) ?? { name, state: "gone", lag_messages: null, lag_bytes: null });
}

function draw(clients) {
  let before = null;
  const seen = new Set();
  for (const client of clients) {
    let entry = rows.get(client.name);
    if (!entry) rows.set(client.name, entry = makeRow(client));
    seen.add(client.name);
    fill(entry, client);
    const place = before ? before.nextSibling : body.firstChild;
    if (place !== entry.row) body.insertBefore(entry.row, place);
    before = entry.row;
  }
  for (const [name, entry] of rows) if (!seen.has(name)) { entry.row.remove(); rows.delete(name); }
}

function counts(clients, shown) {
  const tally = { all: clients.length };
  for (const client of clients) tally[client.state] = (tally[client.state] ?? 0) + 1;
  for (const button of all("[data-choice]", one("#states"))) setText(one("b", button), count(tally[button.dataset.choice] ?? 0));
  setText(one("#shown"), shown === clients.length ? `${count(shown)} clients` : `${count(shown)} of ${count(clients.length)} clients`);
  one("#more").hidden = shown <= limit;
  const none = one("#none");
  none.hidden = shown > 0;
  setText(none, clients.length ? "No client matches. Clear the search or choose another state." : "No client is logged on.");
  setText(one("#held"), held ? "Order held while you point at or select a row; numbers go on" : "");
}

function changeView(change) {
  view = { ...view, ...change };
  limit = PAGE;
  held = false;
  history.replaceState(null, "", `${location.pathname}${writeView(view)}`);
  showView();
  update();
  setText(one("#announce"), one("#shown").textContent);
}

function showView() {
  const search = one("#search");
  if (search.value !== view.q) search.value = view.q;
  for (const button of all("[data-choice]", one("#states"))) setAttribute(button, "aria-pressed", String((view.state || "all") === button.dataset.choice));
  for (const header of all("th[data-key]")) {
    if (header.dataset.key === view.sort) setAttribute(header, "aria-sort", view.down ? "descending" : "ascending");
    else header.removeAttribute("aria-sort");
  }
}

function hold(wanted) {
  if (held === wanted) return;
  held = wanted;
  if (feed.broker && !feed.paused) update();
}

function selecting() {
  const selection = getSelection();
  return Boolean(selection && !selection.isCollapsed && body.contains(selection.anchorNode));
}

for (const header of all("th[data-key]")) {
  one("button", header).addEventListener("click", () => changeView({
    sort: header.dataset.key,
    down: view.sort === header.dataset.key ? !view.down : COLUMNS[header.dataset.key].down,
  }));
}
for (const button of all("[data-choice]", one("#states"))) {
  button.addEventListener("click", () => changeView({ state: button.dataset.choice === "all" ? "" : button.dataset.choice }));
}
one("#search").addEventListener("input", (event) => changeView({ q: event.target.value }));
one("#search").addEventListener("keydown", (event) => { if (event.key === "Escape") { changeView({ q: "" }); event.target.blur(); } });
one("#more button").addEventListener("click", () => { limit += PAGE; update(); });
body.addEventListener("pointerenter", () => hold(true));
body.addEventListener("pointerleave", () => hold(selecting() || body.contains(document.activeElement)));
body.addEventListener("focusin", () => hold(true));
body.addEventListener("focusout", () => setTimeout(() => hold(selecting() || body.contains(document.activeElement) || body.matches(":hover")), 0));
document.addEventListener("selectionchange", () => { if (selecting()) hold(true); else if (held && !body.matches(":hover") && !body.contains(document.activeElement)) hold(false); });
feed.addEventListener("change", update);
showView();
