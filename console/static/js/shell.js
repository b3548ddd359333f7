// What every page has: theme switch, menu, keyboard, feed badge, times. The live feed runs on every page.
import { all, one, setAttribute, setText, typing } from "./dom.js";
import { Feed } from "./feed.js";
import { ago, clock } from "./format.js";

const WORDS = {
  connecting: ["Connecting", "loader"], live: ["Live", "broadcast"], stale: ["Stale", "alert-triangle"],
  reconnecting: ["Reconnecting", "wifi-off"], paused: ["Paused", "player-pause"], refused: ["Not live", "circle-x"],
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
  const show = () => {
    const [word, icon] = WORDS[feed.status];
    setAttribute(element, "data-status", feed.status);
    setText(one(".word", element), word);
    one("use", element).setAttribute("href", `${document.body.dataset.icons}#${icon}`);
    // The age is not announced each second: only the word stands in the live region.
    setText(one(".age", element), feed.status === "stale" || feed.status === "reconnecting" || feed.status === "paused"
      ? `since ${clock(feed.at ?? feed.opened)}` : "");
  };
  feed.addEventListener("status", show);
  show();
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

/** Server-rendered times carry their moment; show them in the operator's clock and keep "ago" true. */
export function times(root = document) {
  for (const element of all("time[data-ms]", root)) {
    const ms = Number(element.dataset.ms);
    setText(element, element.dataset.as === "ago" ? ago(ms) : clock(ms));
    setAttribute(element, "title", `${new Date(ms).toLocaleString("en-GB")} (${new Date(ms).toISOString()})`);
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

themes(); menu(); badge(); dialogs(); keyboard(pause()); times();
setInterval(times, 10_000);
document.addEventListener("htmx:after:swap", () => times());
feed?.start();
