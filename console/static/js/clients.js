// The clients page: a live table. Rows are keyed by name and changed in place; their order is held while the pointer or the
// keyboard is among them, so that nothing slides under a hand. Filter, state and order live in the URL, to be pasted.
import { all, make, one, setAttribute, setText } from "./dom.js";
import { count } from "./format.js";
import { feed } from "./shell.js";
import { sparkline, trend } from "./sparkline.js";
import { chip } from "./states.js";
import { COLUMNS, DRAWN, arrange, readView, textOf, writeView } from "./clients_view.js";

const PAGE = 200; // rows drawn at once; "show more" adds as many
const body = one("#clients tbody");
const rows = new Map();
const FILTERS = all("[data-filter]");
let view = readView(location.search);
let limit = PAGE;
let held = false;
let order = [];

const OPTIONAL = new Set(["text", "percent", "rate", "age"]); // left out where there is little room

function makeRow(client) {
  const line = sparkline();
  const row = make("tr", { "data-name": client.name }, ...DRAWN.map((column) => cell(column, client, line)));
  return { row, line, chips: {}, cells: Object.fromEntries(all("[data-cell]", row).map((one) => [one.dataset.cell, one])) };
}

function cell(column, client, line) {
  if (column.kind === "name") {
    const href = `/clients/${encodeURIComponent(client.name)}/`;
    return make("td", { class: "first" }, make("a", { class: "client-name", "data-row-link": "", href }, client.name));
  }
  const classes = [column.numeric ? "num" : "", OPTIONAL.has(column.kind) ? "optional" : ""].join(" ").trim();
  return make("td", { class: classes || null, "data-cell": column.key, "data-label": column.label }, column.kind === "trend" ? line.root : null);
}

function fill(entry, client) {
  const now = feed.at ?? Date.now();
  setAttribute(entry.row, "class", `row-${client.delivery}`);
  for (const column of DRAWN) {
    const at = entry.cells[column.key], value = client[column.key];
    if (column.kind === "delivery" || column.kind === "health") {
      if (entry.chips[column.key] !== value) { entry.chips[column.key] = value; at.replaceChildren(value ? chip(value, column.kind) : ""); }
    } else if (at && column.kind !== "trend") setText(at, textOf(column, client, now));
  }
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
  return order.map((name) => feed.clients.get(name) ?? { name, delivery: "gone" });
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
  for (const group of FILTERS) {
    const tally = { "": clients.length };
    for (const client of clients) tally[client[group.dataset.filter]] = (tally[client[group.dataset.filter]] ?? 0) + 1;
    for (const button of all("[data-choice]", group)) setText(one("b", button), count(tally[button.dataset.choice] ?? 0));
  }
  setText(one("#shown"), shown === clients.length ? `${count(shown)} clients` : `${count(shown)} of ${count(clients.length)} clients`);
  one("#more").hidden = shown <= limit;
  const none = one("#none");
  none.hidden = shown > 0;
  setText(none, clients.length ? "No client matches. Clear the search or choose another delivery or health." : "No client is logged on.");
  setText(one("#held"), held ? "Order held while you point at or select a row; numbers go on" : "");
}

function changeView(change) {
  view = { ...view, ...change };
  limit = PAGE;
  held = false;
  history.replaceState(null, "", `${location.pathname}${writeView(view, location.search)}`);
  showView();
  update();
  setText(one("#announce"), one("#shown").textContent);
}

function showView() {
  const search = one("#search");
  if (search.value !== view.q) search.value = view.q;
  for (const group of FILTERS) {
    for (const button of all("[data-choice]", group)) setAttribute(button, "aria-pressed", String(view[group.dataset.filter] === button.dataset.choice));
  }
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
    down: view.sort === header.dataset.key ? !view.down : COLUMNS[header.dataset.key].numeric,
  }));
}
for (const group of FILTERS) {
  for (const button of all("[data-choice]", group)) button.addEventListener("click", () => changeView({ [group.dataset.filter]: button.dataset.choice }));
}
one("#choose-columns").addEventListener("change", () => {
  // The server draws the headings, so the page is asked for anew; what it shows stays in the URL.
  const query = new URLSearchParams(location.search), chosen = all("input:checked", one("#choose-columns")).map((box) => box.value);
  if (chosen.length) query.set("columns", chosen.join(",")); else query.delete("columns");
  location.search = query.toString();
});
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
