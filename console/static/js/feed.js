// The live feed: one WebSocket a tab, a snapshot and then deltas. A missed sequence number asks for a new snapshot, since a
// channel layer may drop; nothing shown ever depends on having received every delta. Several views listen to one feed.
//
// Events: "status" (its word changed), "change" (status or clients changed; not while paused), "decision" (detail: it).
import { Memory } from "./memory.js";

const STALE_MS = 5000;
const BACKOFF_MS = [500, 1000, 2000, 5000, 10_000];
const REFUSED = new Set([4401, 4403, 1008]);

export class Feed extends EventTarget {
  constructor(path, instance) {
    super();
    this.url = new URL(path, location.href);
    this.url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    this.memory = new Memory(instance);
    this.newest = { clients: new Map(), broker: null, at: null };
    this.frozen = null; // what is shown while paused, also when a view is sorted or filtered meanwhile
    this.received = 0;
    this.opened = Date.now();
    this.sequence = null;
    this.paused = false;
    this.status = "connecting";
    this.attempt = 0;
  }

  /** Clients by name, the instance's status, and when the broker made them (ms): of now, or of when it was paused. */
  get clients() { return (this.frozen ?? this.newest).clients; }
  get broker() { return (this.frozen ?? this.newest).broker; }
  get at() { return (this.frozen ?? this.newest).at; }

  start() {
    this.#connect();
    setInterval(() => this.#judge(), 1000);
    addEventListener("pagehide", () => this.memory.save());
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
    this.sequence = message.seq;
    this.newest.broker = message.status ?? null;
    this.newest.clients = new Map((message.clients ?? []).map((client) => [client.name, client]));
  }

  #delta(message) {
    const { clients } = this.newest;
    if (message.status) this.newest.broker = { ...this.newest.broker, ...message.status };
    for (const client of message.changed ?? []) clients.set(client.name, { ...clients.get(client.name), ...client });
    for (const name of message.removed ?? []) clients.delete(name);
  }

  #follows(message) {
    if (message.seq === undefined || this.sequence === null) return true;
    const next = message.seq === this.sequence + 1;
    this.sequence = message.seq;
    return next;
  }

  #connect() {
    const socket = this.socket = new WebSocket(this.url);
    socket.addEventListener("open", () => { this.attempt = 0; this.sequence = null; });
    socket.addEventListener("message", (event) => {
      if (!this.apply(JSON.parse(event.data))) socket.send("snapshot"); // a gap: start over from a whole one
    });
    socket.addEventListener("close", (event) => this.#closed(event));
  }

  #closed(event) {
    this.socket = null;
    if (REFUSED.has(event.code)) { this.#say("refused"); return; }
    const wait = BACKOFF_MS[Math.min(this.attempt, BACKOFF_MS.length - 1)];
    this.attempt += 1;
    this.#judge();
    setTimeout(() => this.#connect(), wait * (0.75 + Math.random() / 2));
  }

  #judge() {
    if (this.status === "refused") return;
    if (this.paused) this.#say("paused");
    else if (!this.received) this.#say(this.attempt > 1 ? "reconnecting" : "connecting");
    else if (Date.now() - this.received > STALE_MS) this.#say(this.socket?.readyState === WebSocket.OPEN ? "stale" : "reconnecting");
    else this.#say("live");
  }

  #say(status) {
    if (this.status === status) return;
    this.status = status;
    this.dispatchEvent(new Event("status"));
  }

  #changed() {
    if (!this.paused && this.broker) this.dispatchEvent(new Event("change"));
  }
}
