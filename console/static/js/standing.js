// Current problems, at the top of every page: asked for every five seconds over HTTP, so that it also comes where WebSockets are cut.
// A console that doesn't answer, and a session that ended, are said here too: no server could.
import { icon, make, one } from "./dom.js";
import { moment } from "./format.js";

const EVERY_MS = 5000;
let silentSince = null;

export function watchConditions(feed) {
  const root = one("#standings");
  if (!root) return;
  judge(root);
  feed?.addEventListener("status", () => { if (feed.status === "refused") ended(root); });
  const timer = setInterval(async () => { if (document.visibilityState === "visible" && await ask(root) === "ended") clearInterval(timer); }, EVERY_MS);
}

async function ask(root) {
  try {
    const answer = await fetch(root.dataset.url, { headers: { "X-Requested-With": "fetch" }, redirect: "manual" });
    if (answer.type === "opaqueredirect" || answer.status === 401) { ended(root); return "ended"; }
    if (answer.ok) show(root, await answer.text());
    else if (answer.status === 503) showCondition(root, "database", "The database doesn’t answer", "Changes are not possible, and only live figures update.");
    else if (answer.status !== 403) showCondition(root, "web", `The console answers with an error (${answer.status})`, "See log/web.log.");
    silentSince = null;
  } catch {
    silentSince ??= Date.now();
    showCondition(root, "web", `The console hasn’t answered since ${moment(silentSince)}`, "The page shows the last known state and keeps trying.");
  }
  return "";
}

function show(root, html) {
  const content = html.trim();
  if (root.dataset.shown === content) return;
  root.dataset.shown = content;
  // The console's own page, made by its templates, which escape what comes from outside.
  root.replaceChildren(...new DOMParser().parseFromString(content, "text/html").body.children);
  judge(root);
  document.dispatchEvent(new Event("sluice:swap"));
}

function showCondition(root, key, word, sentence) {
  root.dataset.shown = key + word;
  root.replaceChildren(make("div", { class: "severe", "data-standing": key, "data-blind": true }, icon("alert-triangle"), make("p", {}, make("b", {}, word), ". ", sentence)));
  judge(root);
}

function ended(root) {
  const next = encodeURIComponent(location.pathname + location.search);
  root.dataset.shown = "ended";
  root.replaceChildren(make("div", { class: "severe", "data-standing": "session", "data-blind": true }, icon("lock"),
    make("p", {}, make("b", {}, `Your session ended at ${moment(Date.now())}`), ". This page no longer updates. ", make("a", { href: `/login/?next=${next}` }, "Log in again"))));
  judge(root);
}

/** Rows that may be old are dimmed: `.dims` in the style sheet. */
function judge(root) { document.body.classList.toggle("blind", Boolean(one("[data-blind]", root))); }
