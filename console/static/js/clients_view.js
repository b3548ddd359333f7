// Which clients are shown and in which order: pure functions over the snapshot, and their form in the URL.
import { stateOf } from "./states.js";

/** Sortable columns: how a client's value is read, and whether the first click sorts downwards. */
export const COLUMNS = {
  name: { value: (client) => client.name, down: false },
  state: { value: (client) => stateOf(client.state).order, down: false },
  transport: { value: (client) => client.transport ?? "", down: false },
  lag_ms: { value: (client) => client.lag_ms ?? 0, down: true },
  lag_messages: { value: (client) => client.lag_messages ?? 0, down: true },
  lag_bytes: { value: (client) => client.lag_bytes ?? 0, down: true },
  memory_percent: { value: (client) => client.memory_percent ?? 0, down: true },
  spool_bytes: { value: (client) => client.spool_bytes ?? 0, down: true },
  rate_out_messages: { value: (client) => client.rate_out_messages ?? 0, down: true },
  connected_ms: { value: (client) => client.connected_at ?? 0, down: false },
};
const DEFAULT = { q: "", state: "", sort: "state", down: false };

export function readView(search) {
  const query = new URLSearchParams(search);
  const sort = query.get("sort") ?? DEFAULT.sort;
  const key = sort.replace(/^-/, "");
  return { q: query.get("q") ?? "", state: query.get("state") ?? "", sort: COLUMNS[key] ? key : DEFAULT.sort, down: sort.startsWith("-") };
}

export function writeView(view) {
  const query = new URLSearchParams();
  if (view.q) query.set("q", view.q);
  if (view.state) query.set("state", view.state);
  if (view.sort !== DEFAULT.sort || view.down !== DEFAULT.down) query.set("sort", (view.down ? "-" : "") + view.sort);
  const text = query.toString();
  return text ? `?${text}` : "";
}

/** The clients to show, in order; equal ones by lag, then by name, so that rows don't dance. */
export function arrange(clients, view) {
  const needle = view.q.trim().toLowerCase();
  const value = COLUMNS[view.sort].value, sign = view.down ? -1 : 1;
  return clients
    .filter((client) => (!view.state || client.state === view.state) && (!needle || matches(client, needle)))
    .sort((a, b) => sign * compare(value(a), value(b)) || (b.lag_ms ?? 0) - (a.lag_ms ?? 0) || compare(a.name, b.name));
}

const matches = (client, needle) =>
  [client.name, client.transport, client.remote, client.user].some((text) => String(text ?? "").toLowerCase().includes(needle));
const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
