// Following a topic: what comes is asked for again and again, never twice at a time, and only as fast as this page shows it. The server gives a
// bounded number at once and says what passed beyond it; the page keeps a bounded number of rows.
import { all, icon, make, one, setAttribute, setText } from "./dom.js";
import { count } from "./format.js";

const EVERY_MS = 1000, MAX_ROWS = 500;
const list = one("#messages-list"), button = one("#follow"), passedNote = one("#passed");
let following = false, after = "", passed = 0, dropped = 0, timer = 0;

if (list && button) {
  button.addEventListener("click", () => (following ? stop() : start()));
  document.addEventListener("visibilitychange", () => { if (following && document.visibilityState === "visible") { clearTimeout(timer); ask(); } });
}

function start() {
  following = true; after = ""; passed = dropped = 0;
  show();
  ask();
}

function stop(reason = "") {
  following = false;
  clearTimeout(timer);
  show();
  if (reason) showNote(reason);
}

function show() {
  setAttribute(button, "aria-pressed", String(following));
  button.replaceChildren(icon(following ? "player-pause" : "player-play"), make("span", { class: "word" }, following ? "Stop following" : "Follow"));
  setAttribute(list, "aria-busy", String(following));
}

function showNote(words) {
  passedNote.hidden = !words;
  setText(one("span", passedNote), words);
}

/** One question; the next one a second after its answer has been shown. A page that nobody looks at doesn't ask. */
async function ask() {
  if (!following || document.visibilityState !== "visible") return;
  const query = new URLSearchParams({ topic: one("#topic").value, filter: one("#filter").value, after });
  let answer = null;
  try { answer = await fetch(`${list.dataset.follow}?${query}`, { redirect: "manual" }); } catch { /* the frame says that the console doesn't answer */ }
  if (!following) return;
  if (answer?.type === "opaqueredirect" || (answer && !answer.ok)) { stop(answer.ok === false && answer.status === 403 ? "You no longer have permission to read this topic." : "Cannot follow further: reload the page."); return; }
  if (answer) take(await answer.text());
  if (following) timer = setTimeout(ask, EVERY_MS);
}

function take(html) {
  // The console's own rows, made by its templates, which escape what comes from outside.
  const root = new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
  if (!root) return;
  if (root.dataset.problem) { showNote(root.dataset.problem); return; }
  const first = after === "";
  after = root.dataset.after;
  if (first) return;
  passed += Number(root.dataset.passed);
  list.prepend(...root.children);
  trim();
  one("#messages-none")?.remove();
  const parts = [];
  if (passed) parts.push(`Too fast to show: ${count(passed)} records of the log were skipped.`);
  if (dropped) parts.push(`The newest ${MAX_ROWS} are shown; ${count(dropped)} older ones were removed.`);
  showNote(parts.join(" "));
  document.dispatchEvent(new Event("sluice:swap"));
}

/** The oldest rows go, but not one that somebody has open. */
function trim() {
  const rows = all(":scope > li", list);
  for (const row of rows.slice(MAX_ROWS)) {
    if (one("details[open]", row) || row.contains(document.activeElement)) continue;
    row.remove();
    dropped += 1;
  }
}
