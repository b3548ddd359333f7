// Which clients are shown, in which columns and which order: as the URL has it, and as the server is asked for it.
import { data } from "./dom.js";
import { bytes, count, duration, percent, rate } from "./format.js";

/** The server's list of columns (broker_core/documents/client_columns.py): key, label, kind, sortable, numeric, drawn. */
const LIST = data("columns", []);
export const COLUMNS = Object.fromEntries(LIST.map((column) => [column.key, column]));
export const DRAWN = LIST.filter((column) => column.drawn);
const DEFAULT = { q: "", delivery: "", health: "", sort: data("default-sort", "health"), down: false };

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
  if (view.sort !== DEFAULT.sort || view.down !== DEFAULT.down) query.set("sort", sortOf(view));
  if (columns) query.set("columns", columns);
  const text = query.toString();
  return text ? `?${text}` : "";
}

const sortOf = (view) => (view.down ? "-" : "") + view.sort;

/** View to request from the feed. */
export const viewRequest = (view, offset, limit) => ({
  view: "clients", search: view.q.trim(), delivery: view.delivery, health: view.health, sort: sortOf(view), offset, limit,
});
