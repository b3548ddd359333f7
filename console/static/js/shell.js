// What every page has: theme switch, menu, keyboard, feed badge, times. The live feed runs on every page.
import { all, one, setAttribute, setText, typing } from "./dom.js";
import { Feed } from "./feed.js";
import { ago, clock, count, duration, minute, moment } from "./format.js";
import { palette } from "./palette.js";
import { picker } from "./past.js";
import { watchConditions } from "./standing.js";
import { pendingChangesKeys } from "./pending_changes.js";
import { choice, choices, choose, dayAndTime, zoneWord } from "./zone.js";

// What is said of the connection, not of any page's figures.
const WORDS = {
  connecting: ["Connecting to the broker", "loader"], live: ["Connected to the broker", "point"], stale: ["No report from the broker", "alert-triangle"],
  reconnecting: ["Connection lost, trying again", "wifi-off"], paused: ["Live updates paused", "player-pause"], refused: ["Session ended", "lock"],
};

export const feed = document.body.dataset.feed ? new Feed(document.body.dataset.feed, document.body.dataset.instance) : null;

function themes() {
  const buttons = all("[data-theme-set]");
  const show = () => buttons.forEach((button) => setAttribute(button, "aria-pressed", String(button.dataset.themeSet === window.sluiceTheme.choice())));
  buttons.forEach((button) => button.addEventListener("click", () => { window.sluiceTheme.set(button.dataset.themeSet); show(); }));
  show();
}

function menu() {
  const button = one(".menu-button"), body = one("#side-body");
  button?.addEventListener("click", () => {
    const open = body.classList.toggle("open");
    setAttribute(button, "aria-expanded", String(open));
  });
}

function badge() {
  const element = one("#feed");
  if (!feed || !element) return;
  const age = () => {
    // The age is not announced each second: only the word stands in the live region.
    const known = feed.at ?? null, late = known === null ? null : Math.max(0, Date.now() - known);
    setText(one(".age", element), known === null ? "" : feed.status === "live" ? `newest sample ${duration(Math.round(late / 100) * 100)} ago` : `since ${moment(known)}`);
  };
  const show = () => {
    const [word, icon] = WORDS[feed.status];
    setAttribute(element, "data-status", feed.status);
    setText(one(".word", element), word);
    one("use", element).setAttribute("href", `${document.body.dataset.icons}#${icon}`);
    age();
  };
  feed.addEventListener("status", show);
  feed.addEventListener("change", age);
  setInterval(age, 1000);
  show();
}

/** Beside the instance's name what its broker runs, and how many clients there are. */
function sidebar() {
  feed?.addEventListener("change", () => {
    const revision = feed.broker?.revision;
    setText(one("#instance-note"), revision === undefined ? "" : `runs revision ${revision}`);
    setText(one("#count-clients"), feed.totals ? count(feed.totals.clients) : "");
  });
}

function clocks() {
  const select = one("#zone"), now = one("#now");
  if (!select) return;
  select.replaceChildren(...choices().map(([key, words]) => new Option(words, key, key === choice(), key === choice())));
  const tick = () => setText(now, `${dayAndTime(Date.now()).time} ${zoneWord(Date.now())}`);
  select.addEventListener("change", () => { choose(select.value); tick(); times(); });
  setInterval(tick, 1000);
  tick();
}

function pause() {
  const button = one("#pause");
  if (!feed || !button) return;
  const toggle = () => {
    feed.setPaused(!feed.paused);
    setAttribute(button, "aria-pressed", String(feed.paused));
    setText(one(".word", button), feed.paused ? "Resume" : "Pause");
    one("use", button).setAttribute("href", `${document.body.dataset.icons}#${feed.paused ? "player-play" : "player-pause"}`);
  };
  button.addEventListener("click", toggle);
  return toggle;
}

const AS = { ago: (ms) => ago(ms), zone: moment, minute };

/** Server-rendered times carry their moment; show them in the operator's clock and keep "ago" true. */
export function times(root = document) {
  for (const element of all("time[data-ms]", root)) {
    const ms = Number(element.dataset.ms);
    setText(element, (AS[element.dataset.as] ?? clock)(ms));
    const at = dayAndTime(ms);
    setAttribute(element, "title", `${at.day} ${at.time} ${zoneWord(ms)} (${new Date(ms).toISOString()})`);
  }
}

function keyboard(togglePause) {
  const pages = Object.fromEntries(all("a[data-go]").map((link) => [link.dataset.go, link.href]));
  const help = one("#help");
  let leader = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    const armed = Date.now() - leader < 1200;
    leader = 0;
    if (armed && pages[event.key]) { location.href = pages[event.key]; event.preventDefault(); return; }
    if (event.key === "g") { leader = Date.now(); return; }
    if (event.key === "?") { help?.showModal(); event.preventDefault(); }
    if (event.key === "/") { const search = one("[data-search]"); if (search) { search.focus(); search.select?.(); event.preventDefault(); } }
    if (event.key === "p" && togglePause) togglePause();
    if (event.key === "j" || event.key === "k") walk(event.key === "j" ? 1 : -1, event);
  });
  all("[data-help]").forEach((button) => button.addEventListener("click", () => help?.showModal()));
}

/** j and k move over the rows' links of the page's main list. */
function walk(step, event) {
  const links = all("[data-row-link]").filter((link) => link.offsetParent !== null);
  if (!links.length) return;
  const here = links.indexOf(document.activeElement);
  links[Math.min(links.length - 1, Math.max(0, here < 0 ? (step > 0 ? 0 : links.length - 1) : here + step))].focus();
  event.preventDefault();
}

function dialogs() {
  all("[data-opens]").forEach((button) => button.addEventListener("click", () => document.getElementById(button.dataset.opens).showModal()));
  all("dialog [data-closes]").forEach((button) => button.addEventListener("click", () => button.closest("dialog").close()));
  all("dialog[data-open-now]").forEach((dialog) => dialog.showModal());
}

/** A menu closes when something of it was chosen, by Escape, and when one goes on elsewhere. */
function menus() {
  const close = (menu) => { menu.open = false; };
  document.addEventListener("submit", (event) => { const menu = event.target.closest("details.menu"); if (menu) close(menu); });
  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && event.target.closest?.("details.menu[open]");
    if (menu) { close(menu); one("summary", menu).focus(); }
  });
  for (const kind of ["pointerdown", "focusin"]) document.addEventListener(kind, (event) => all("details.menu[open]").forEach((menu) => { if (!menu.contains(event.target)) close(menu); }));
}

/** A field that was refused takes the focus, so that nobody has to look for it. */
function focusOnWrong() {
  const wrong = one('[data-focus], [aria-invalid="true"]');
  if (wrong) { wrong.focus({ preventScroll: false }); wrong.scrollIntoView({ block: "center" }); }
}

/** Of a new transport only what its kind has; what is hidden isn't sent either. */
function fieldsOfKind() {
  const kind = one("select[name=kind]:enabled"), fields = all("[data-kinds]");
  if (!kind || !fields.length) return;
  const show = () => {
    for (const field of fields) {
      field.disabled = !field.dataset.kinds.split(" ").includes(kind.value);
      field.closest(".field").hidden = field.disabled;
    }
    for (const group of new Set(fields.map((field) => field.closest(".fields")))) {
      group.previousElementSibling.hidden = [...group.children].every((field) => field.hidden);
    }
  };
  kind.addEventListener("change", show);
  show();
}

function copying() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("[data-copy]");
    if (!button) return;
    try { await navigator.clipboard.writeText(button.dataset.copy); setText(one(".visually-hidden", button), "Copied"); } catch { /* not allowed here */ }
  });
}

themes(); menu(); badge(); sidebar(); clocks(); dialogs(); menus(); keyboard(pause()); times(); fieldsOfKind(); copying(); focusOnWrong(); palette(); picker(); pendingChangesKeys();
watchConditions(feed);
setInterval(times, 10_000);
for (const event of ["htmx:after:swap", "sluice:swap", "sluice:zone"]) document.addEventListener(event, () => times());
// After the page's own module has said what it looks at.
if (document.readyState === "complete") feed?.start(); else document.addEventListener("DOMContentLoaded", () => feed?.start());
