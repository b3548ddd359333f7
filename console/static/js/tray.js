// The tray by the keyboard: who puts a change in with a key goes on in it, and Escape leads back. The mouse goes where it likes.
import { one } from "./dom.js";

let byKey = false, cameFrom = null;

const inTray = (element) => Boolean(element?.closest?.("#tray"));

export function trayKeys() {
  if (!one("#tray")) return;
  document.addEventListener("keydown", (event) => {
    byKey = true;
    if (event.key === "Escape" && inTray(event.target) && !event.defaultPrevented) leave();
  }, true);
  document.addEventListener("pointerdown", () => { byKey = false; }, true);
  document.addEventListener("submit", () => {
    const at = document.activeElement, menu = at.closest("details.menu");
    if (!inTray(at)) cameFrom = menu ? one("summary", menu) : at;
  }, true);
  document.addEventListener("htmx:after:swap", (event) => {
    if (!byKey || event.detail?.ctx?.target?.id !== "tray") return;
    if (one("#tray").hidden) leave(); else enter();
  });
}

/** To what is asked first: a change that can't be done, a risk that must be ticked, or the reason. */
export function enter() {
  const wanted = one("#tray .tray-items .state-bad") ? "#tray .tray-items li:has(.state-bad) button" : "#tray [name=confirmed], #tray-reason";
  one(wanted)?.focus();
}

function leave() {
  const there = cameFrom?.isConnected && cameFrom.offsetParent ? cameFrom : one("#main");
  there.focus();
}
