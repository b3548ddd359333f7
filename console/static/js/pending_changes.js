// Keyboard focus of pending changes: a change added with a key moves the focus there, and Escape returns it.
import { one } from "./dom.js";

let byKey = false, cameFrom = null;

const inPendingChanges = (element) => Boolean(element?.closest?.("#pending-changes"));

export function pendingChangesKeys() {
  if (!one("#pending-changes")) return;
  document.addEventListener("keydown", (event) => {
    byKey = true;
    if (event.key === "Escape" && inPendingChanges(event.target) && !event.defaultPrevented) leave();
  }, true);
  document.addEventListener("pointerdown", () => { byKey = false; }, true);
  document.addEventListener("submit", () => {
    const at = document.activeElement, menu = at.closest("details.menu");
    if (!inPendingChanges(at)) cameFrom = menu ? one("summary", menu) : at;
  }, true);
  document.addEventListener("htmx:after:swap", (event) => {
    if (!byKey || event.detail?.ctx?.target?.id !== "pending-changes") return;
    if (one("#pending-changes").hidden) leave(); else enter();
  });
}

/** To what is asked first: a change that can't be done, a risk that must be ticked, or the reason. */
export function enter() {
  const wanted = one("#pending-changes .pending-items .state-bad") ? "#pending-changes .pending-items li:has(.state-bad) button" : "#pending-changes [name=confirmed], #pending-reason";
  one(wanted)?.focus();
}

function leave() {
  const there = cameFrom?.isConnected && cameFrom.offsetParent ? cameFrom : one("#main");
  there.focus();
}
