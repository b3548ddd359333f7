// Ctrl-K: a page, a part of this page, or a client by some letters of its name. A combobox over one list; the keyboard alone is enough.
import { all, icon, make, one, setAttribute, setText, typing } from "./dom.js";
import { enter } from "./pending_changes.js";

const MAX_ENTRIES = 12, MAX_CLIENTS = 8, WAIT_MS = 120;
const dialog = one("#palette"), field = one("#palette-field"), list = one("#palette-list"), status = one("#palette-said");
let shown = [], active = 0, timer = 0, requests = 0;

export function palette() {
  if (!dialog) return;
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || event.key.toLowerCase() !== "k") return;
    if (typing(event.target) && event.target !== field && event.target.closest("dialog")) return;
    event.preventDefault();
    if (dialog.open) dialog.close(); else open();
  });
  all("[data-palette]").forEach((button) => button.addEventListener("click", open));
  field.addEventListener("input", () => find(field.value));
  field.addEventListener("keydown", keys);
  list.addEventListener("click", (event) => { const row = event.target.closest("[role=option]"); if (row) go(shown[Number(row.dataset.at)]); });
}

function open() {
  field.value = "";
  dialog.showModal();
  find("");
}

function keys(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) { active = (active + step + shown.length) % Math.max(1, shown.length); mark(); event.preventDefault(); }
  if (event.key === "Enter") { event.preventDefault(); if (shown[active]) go(shown[active]); }
}

/** What can be gone to without asking: pages, parts of this page, themes. */
function known() {
  const pages = all("nav[aria-label=Pages] a[data-go]").map((link) => ({ word: link.textContent.trim(), kind: "page", key: `g ${link.dataset.go}`, href: link.href }));
  const more = all("#palette-more a").map((link) => ({ word: link.textContent.trim(), kind: "page", href: link.href }));
  const parts = all("main h2").filter((head) => head.offsetParent).map((head) => ({ word: head.textContent.trim(), kind: "on this page", element: head }));
  const themes = all("[data-theme-set]").map((button) => ({ word: `Theme: ${button.textContent.trim().toLowerCase()}`, kind: "act", press: button }));
  const pending = one("#pending-changes:not([hidden])") ? [{ word: "Pending changes", kind: "on this page", run: enter }] : [];
  return [...pending, ...pages, ...more, ...parts, ...themes];
}

function find(text) {
  const query = text.trim().toLowerCase(), words = query.split(/\s+/);
  const fits = known().filter((entry) => words.every((word) => entry.word.toLowerCase().includes(word)));
  show(fits.slice(0, MAX_ENTRIES));
  clearTimeout(timer);
  if (query) timer = setTimeout(() => clients(query, fits), WAIT_MS);
}

async function clients(query, before) {
  const request = requests += 1;
  try {
    const answer = await fetch(`/api/v1/clients?search=${encodeURIComponent(query)}&page_size=${MAX_CLIENTS}`, { headers: { Accept: "application/json" } });
    if (!answer.ok || request !== requests || !dialog.open) return;
    const found = (await answer.json()).results.map((client) => ({ word: client.name, kind: client.health, href: `/clients/${encodeURIComponent(client.name)}/` }));
    show([...before.slice(0, MAX_ENTRIES - Math.min(found.length, MAX_CLIENTS)), ...found.slice(0, MAX_CLIENTS)]);
  } catch { /* pages can still be gone to */ }
}

function show(entries) {
  shown = entries;
  active = 0;
  list.replaceChildren(...entries.map((entry, at) => make("li", { role: "option", id: `palette-${at}`, "data-at": at, "aria-selected": "false" },
    icon(entry.kind === "page" ? "arrow-right" : entry.kind === "act" ? "bolt" : entry.kind === "on this page" ? "chevron-right" : "plug-connected"), make("bdi", { class: "cut grow" }, entry.word), make("span", { class: "meta" }, entry.kind), entry.key ? make("kbd", {}, entry.key) : null)));
  setText(status, entries.length ? `${entries.length} found` : "No match");
  mark();
}

function mark() {
  all("[role=option]", list).forEach((row, at) => setAttribute(row, "aria-selected", String(at === active)));
  const row = list.children[active];
  if (row) { setAttribute(field, "aria-activedescendant", row.id); row.scrollIntoView({ block: "nearest" }); } else field.removeAttribute("aria-activedescendant");
}

function go(entry) {
  dialog.close();
  if (entry.href) location.href = entry.href;
  else if (entry.press) entry.press.click();
  else if (entry.run) entry.run();
  else { entry.element.setAttribute("tabindex", "-1"); entry.element.focus(); entry.element.scrollIntoView({ block: "start" }); }
}
