// What this tab has seen: rates of the instance and lag of each client, so that plots don't start empty on every page.
// Kept in sessionStorage when a page is left. The database holds the real history; this is the last quarter of an hour.

const KEY = "sluice.memory.2";
const RATE_SAMPLES = 900;
export const LAG_SAMPLES = 120;
const MAX_CLIENTS = 300;

export class Memory {
  constructor(instance, storage = globalThis.sessionStorage) {
    this.instance = instance;
    this.storage = storage;
    this.rates = [];
    this.lags = new Map();
    this.#restore();
  }

  /** Note one moment: [at, messages in, messages out, bytes in, bytes out], and each client's lag. */
  note(at, status, clients) {
    const last = this.rates.at(-1);
    if (last && at - last[0] < 500) return;
    const rates = status?.rates ?? {};
    this.rates.push([at, rates.messages_in ?? 0, rates.messages_out ?? 0, rates.bytes_in ?? 0, rates.bytes_out ?? 0]);
    if (this.rates.length > RATE_SAMPLES) this.rates.splice(0, this.rates.length - RATE_SAMPLES);
    for (const client of clients.values()) this.#noteLag(client, at);
    for (const name of this.lags.keys()) if (!clients.has(name)) this.lags.delete(name);
  }

  lagsOf(name) { return this.lags.get(name) ?? []; }

  #noteLag(client, at) {
    let samples = this.lags.get(client.name);
    if (!samples) this.lags.set(client.name, samples = []);
    samples.push([at, client.lag_messages ?? 0, client.lag_ms ?? 0, client.lag_bytes ?? 0]);
    if (samples.length > LAG_SAMPLES) samples.splice(0, samples.length - LAG_SAMPLES);
  }

  save() {
    const lags = [...this.lags].slice(0, MAX_CLIENTS);
    try { this.storage?.setItem(KEY, JSON.stringify({ instance: this.instance, rates: this.rates, lags })); } catch { /* full or refused */ }
  }

  #restore() {
    try {
      const saved = JSON.parse(this.storage?.getItem(KEY) ?? "null");
      if (!saved || saved.instance !== this.instance) return;
      const since = Date.now() - 15 * 60_000;
      this.rates = saved.rates.filter((sample) => sample[0] > since);
      this.lags = new Map(saved.lags.map(([name, samples]) => [name, samples.filter((sample) => sample[0] > since)]));
    } catch { /* damaged: begin anew */ }
  }
}
