// The live feed: one WebSocket a tab, which says what it looks at and gets totals, the rows it shows, and their changes. A missed
// sequence number asks for a new snapshot, since a channel layer may drop; nothing shown ever depends on having received
// every delta. Where WebSockets are cut the same windows are asked for over HTTP.
//
// Events: "status" (its word changed), "change" (status or rows changed; not while paused), "decision" (detail: it).
import { Memory } from "./memory.js";

const STALE_MS = 5000;
const BACKOFF_MS = [500, 1000, 2000, 5000, 10_000];
const REFUSED = new Set([4401, 4403, 1008]);
const POLL_AFTER = 3, POLL_MS = 3000;
const NOTHING = { clients: new Map(), order: [], totals: null, total: 0, broker: null, at: null, flow: null };

export class Feed extends EventTarget {
  constructor(path, instance) {
    super();
    this.url = new URL(path, location.href);
    this.url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    this.memory = new Memory(instance);
    this.newest = { ...NOTHING, clients: new Map() };
    this.frozen = null; // what is shown while paused, also when a view is sorted or filtered meanwhile
    this.view = { view: "totals" };
    this.received = 0;
    this.startedAt = Date.now();
    this.sequence = null;
    this.paused = false;
    this.status = "connecting";
    this.attempt = 0;
  }

  /** Rows by name, their order, how many fit, totals, the instance's status, when the broker made them (ms): of now, or of when it was paused. */
  get clients() { return (this.frozen ?? this.newest).clients; }
  get order() { return (this.frozen ?? this.newest).order; }
  get total() { return (this.frozen ?? this.newest).total; }
  get totals() { return (this.frozen ?? this.newest).totals; }
  get broker() { return (this.frozen ?? this.newest).broker; }
  get flow() { return (this.frozen ?? this.newest).flow; }
  get at() { return (this.frozen ?? this.newest).at; }

  start() {
    this.#connect();
    setInterval(() => this.#judge(), 1000);
    addEventListener("pagehide", () => this.memory.save());
  }

  /** Request the view that this tab shows: {view: "totals"}, {view: "flow"}, {view: "client", client}, or {view: "clients", search, …, offset, limit, names}. */
  requestView(view) {
    if (JSON.stringify(view) === JSON.stringify(this.view)) return;
    this.view = view;
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(view));
    else if (this.polling) this.#poll();
  }

  setPaused(paused) {
    this.paused = paused;
    this.frozen = paused ? { ...this.newest, clients: new Map(this.newest.clients) } : null;
    this.#judge();
    if (!paused) this.#changed();
  }

  /** Apply one message of the feed; returns false when a gap was found. Public for the tests. */
  apply(message) {
    this.received = Date.now();
    if (message.type === "decision") {
      this.dispatchEvent(new CustomEvent("decision", { detail: message.decision }));
      return this.#follows(message);
    }
    if (message.type === "snapshot") this.#snapshot(message);
    else if (message.type === "delta") { if (!this.#follows(message)) return false; this.#delta(message); }
    else return true;
    this.newest.at = message.at ?? this.received;
    this.memory.note(this.newest.at, this.newest.broker, this.newest.clients);
    this.#judge();
    this.#changed();
    return true;
  }

  #snapshot(message) {
    const clients = message.clients ?? [];
    this.sequence = message.seq ?? this.sequence;
    this.newest = {
      clients: new Map(clients.map((client) => [client.name, client])), order: message.order ?? clients.map((client) => client.name),
      totals: message.totals ?? null, total: message.total ?? clients.length, broker: message.status ?? null, at: this.newest.at, flow: message.flow ?? null,
    };
  }

  #delta(message) {
    const { newest } = this;
    if (message.status) newest.broker = { ...newest.broker, ...message.status };
    for (const client of message.changed ?? []) newest.clients.set(client.name, { ...newest.clients.get(client.name), ...client });
    for (const name of message.removed ?? []) newest.clients.delete(name);
    for (const key of ["order", "totals", "total", "flow"]) if (message[key] !== undefined) newest[key] = message[key];
  }

  #follows(message) {
    if (message.seq === undefined || this.sequence === null) return true;
    const next = message.seq === this.sequence + 1;
    this.sequence = message.seq;
    return next;
  }

  /** The address with what is looked at, so that the first snapshot is of it already. */
  #address(base) {
    const address = new URL(base);
    for (const [key, value] of Object.entries(this.view)) if (key !== "names" && value !== "" && value !== undefined) address.searchParams.set(key, value);
    return address;
  }

  #connect() {
    const socket = this.socket = new WebSocket(this.#address(this.url)), sent = JSON.stringify(this.view);
    socket.addEventListener("open", () => {
      this.attempt = 0;
      this.sequence = null;
      clearInterval(this.polling);
      this.polling = null;
      if (JSON.stringify(this.view) !== sent) socket.send(JSON.stringify(this.view));
    });
    socket.addEventListener("message", (event) => {
      if (!this.apply(JSON.parse(event.data))) socket.send("snapshot"); // a gap: start over from a whole one
    });
    socket.addEventListener("close", (event) => this.#closed(event));
  }

  #closed(event) {
    this.socket = null;
    if (REFUSED.has(event.code)) { this.#setStatus("refused"); return; }
    const wait = BACKOFF_MS[Math.min(this.attempt, BACKOFF_MS.length - 1)];
    this.attempt += 1;
    if (this.attempt >= POLL_AFTER && !this.polling) { this.polling = setInterval(() => this.#poll(), POLL_MS); this.#poll(); }
    this.#judge();
    setTimeout(() => this.#connect(), wait * (0.75 + Math.random() / 2));
  }

  /** Where WebSockets are cut: the same window over HTTP. */
  async #poll() {
    try {
      const answer = await fetch(this.#address(new URL("/api/v1/live", location.href)), { headers: { Accept: "application/json" } });
      if (answer.ok && this.polling) this.apply(await answer.json());
    } catch { /* the frame says that the console doesn't answer */ }
  }

  #judge() {
    if (this.status === "refused") return;
    if (this.paused) this.#setStatus("paused");
    else if (!this.received) this.#setStatus(this.attempt > 1 ? "reconnecting" : "connecting");
    else if (Date.now() - this.received > STALE_MS) this.#setStatus(this.socket?.readyState === WebSocket.OPEN ? "stale" : "reconnecting");
    else this.#setStatus("live");
  }

  #setStatus(status) {
    if (this.status === status) return;
    this.status = status;
    this.dispatchEvent(new Event("status"));
  }

  #changed() {
    if (!this.paused && this.broker) this.dispatchEvent(new Event("change"));
  }
}
