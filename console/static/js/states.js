// A client's states: word, icon and colour class in one place. Colour is never alone. Mirrors components/state.html.
import { icon, make } from "./dom.js";

export const STATES = {
  live: { word: "Live", icon: "circle-check", order: 3, help: "Receives records as they are accepted" },
  replaying: { word: "Replaying", icon: "history", order: 2, help: "Reads the journal from a bookmark; will join live" },
  draining: { word: "Draining", icon: "progress-down", order: 1, help: "Reads again: its spool is being sent, in order" },
  offlined: { word: "Offlined", icon: "database-import", order: 0, help: "Too slow for memory: its backlog goes to its spool on disk" },
  gone: { word: "Logged off", icon: "plug-x", order: 4, help: "Not connected" },
};

export const stateOf = (name) => STATES[name] ?? { word: name, icon: "circle-dashed", order: 5, help: "" };

export function chip(name) {
  const state = stateOf(name);
  return make("span", { class: `state state-${name}`, title: state.help, "data-state": name }, icon(state.icon), state.word);
}
