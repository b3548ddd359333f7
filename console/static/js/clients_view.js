// Which clients are shown, in which columns and which order: pure functions over the snapshot, and their form in the URL.
import { data } from "./dom.js";
import { bytes, count, duration, percent, rate } from "./format.js";
import { wordOf } from "./states.js";

/** The server's list of columns (broker_core/documents/columns.py): key, label, kind, sortable, numeric, drawn. */
const LIST = data("columns", []);
export const COLUMNS = Object.fromEntries(LIST.map((column) => [column.key, column]));
export const DRAWN = LIST.filter((column) => column.drawn);
const DEFAULT = { q: "", delivery: "", health: "", sort: data("default-sort", "health"), down: false };
const WORDED = new Set(["delivery", "health"]);

/** How each kind is written; chips and lines are drawn by the table. */
const FORMATS = {
  count, bytes, rate, percent, ms: duration, seconds: (value) => duration(value === null || value === undefined ? value : value * 1000),
  age: (value, now) => duration(value ? now - value : null),
};

export function textOf(column, client, now) {
  const value = client[column.key], format = FORMATS[column.kind];
  return format ? format(value, now) : String(value ?? "");
}

export function readView(search) {
  const query = new URLSearchParams(search);
  const sort = query.get("sort") ?? DEFAULT.sort;
  const key = sort.replace(/^-/, "");
  return {
    q: query.get("q") ?? "", delivery: query.get("delivery") ?? query.get("state") ?? "", health: query.get("health") ?? "",
    sort: COLUMNS[key]?.sortable ? key : DEFAULT.sort, down: sort.startsWith("-"),
  };
}

/** The view in the URL; the columns chosen besides stay in it. */
export function writeView(view, search = "") {
  const query = new URLSearchParams(), columns = new URLSearchParams(search).get("columns");
  for (const key of ["q", "delivery", "health"]) if (view[key]) query.set(key, view[key]);
  if (view.sort !== DEFAULT.sort || view.down !== DEFAULT.down) query.set("sort", (view.down ? "-" : "") + view.sort);
  if (columns) query.set("columns", columns);
  const text = query.toString();
  return text ? `?${text}` : "";
}

/** The clients to show, in order; those without a value last, equal ones by lag, then by name, so that rows don't dance. */
export function arrange(clients, view) {
  const needle = view.q.trim().toLowerCase();
  const value = valueOf(COLUMNS[view.sort]), sign = view.down ? -1 : 1;
  return clients
    .filter((client) => (!view.delivery || client.delivery === view.delivery) && (!view.health || client.health === view.health)
      && (!needle || matches(client, needle)))
    .sort((a, b) => ordered(value(a), value(b), sign) || (b.seconds_behind ?? 0) - (a.seconds_behind ?? 0) || compare(a.name, b.name));
}

const valueOf = ({ key, kind }) => WORDED.has(kind) ? (client) => wordOf(kind, client[key]).order : (client) => client[key] ?? null;
const matches = (client, needle) =>
  [client.name, client.transport, client.remote, client.user].some((text) => String(text ?? "").toLowerCase().includes(needle));
const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
const ordered = (a, b, sign) => (a === null || b === null ? compare(a === null, b === null) : sign * compare(a, b));
