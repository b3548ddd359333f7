// Keyboard focus of pending changes: a change added with a key moves the focus there, and Escape returns it.
import { one } from "./dom.js";

let byKey = false, previousFocus = null;

const inPendingChanges = (element) => Boolean(element?.closest?.("#pending-changes"));

export function pendingChangesKeys() {
  if (!one("#pending-changes")) return;
  document.addEventListener("keydown", (event) => {
    byKey = true;
    if (event.key === "Escape" && inPendingChanges(event.target) && !event.defaultPrevented) restoreFocus();
  }, true);
  document.addEventListener("pointerdown", () => { byKey = false; }, true);
  document.addEventListener("submit", () => {
    const at = document.activeElement, menu = at.closest("details.menu");
    if (!inPendingChanges(at)) previousFocus = menu ? one("summary", menu) : at;
  }, true);
  document.addEventListener("htmx:after:swap", (event) => {
    if (!byKey || event.detail?.ctx?.target?.id !== "pending-changes") return;
    if (one("#pending-changes").hidden) restoreFocus(); else enter();
  });
}

/** To what is asked first: a change that can't be done, a risk that must be ticked, or the reason. */
export function enter() {
  const selector = one("#pending-changes .pending-items .state-bad") ? "#pending-changes .pending-items li:has(.state-bad) button" : "#pending-changes [name=confirmed], #pending-reason";
  one(selector)?.focus();
}

function restoreFocus() {
  const there = previousFocus?.isConnected && previousFocus.offsetParent ? previousFocus : one("#main");
  there.focus();
}
