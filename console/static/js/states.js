// Words, icons and colour classes of what the broker does for a client and of how it fares. The server's list: see
// templatetags/page_frame.py. Colour is never alone.
import { data, icon, make } from "./dom.js";

const WORDS = data("client-words", {});

/** By kind ("delivery" or "health"): key → word, icon, help and order, in the order in which an operator looks. */
export const DELIVERIES = WORDS.delivery ?? {};
export const HEALTHS = WORDS.health ?? {};

export const wordOf = (kind, name) => WORDS[kind]?.[name] ?? { word: name, icon: "circle-dashed", order: 99, help: "" };

export function chip(name, kind = "delivery") {
  const known = wordOf(kind, name);
  const shown = String(name).replaceAll(" ", "-");
  return make("span", { class: `state state-${shown}`, title: known.help, "data-state": name }, icon(known.icon), known.word);
}

/** Chips of an action on a client. A shadow action says "would" and looks different. */
export function actionChips(action, mode) {
  const label = WORDS.acts?.[action] ?? { done: action, would: `Would: ${action}`, icon: "bolt" };
  if (mode !== "shadow") return [make("span", { class: "state", "data-state": action }, icon(label.icon), label.done)];
  return [make("span", { class: "state would", "data-state": action }, icon(label.icon), label.would), " ", make("span", { class: "tag shadow" }, "recorded only")];
}

/** What will be done to a client at its limit: "disconnected"; a limit that only records says "would be". */
export function does(action, mode) {
  const label = WORDS.acts?.[action];
  return (mode === "shadow" ? label?.would : label?.done)?.toLowerCase() ?? action;
}
