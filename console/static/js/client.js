// One client's page: its figures and lag live, its history from the database, its hours from the pipeline.
import { data, make, one, setText } from "./dom.js";
import { bytes, clock, count, duration, moment, percent, rate } from "./format.js";
import { timePlot } from "./plot.js";
import { feed } from "./shell.js";
import { chip } from "./states.js";

const name = one("#figures").dataset.client;
const LAG = [
  { label: "Messages behind", colour: "--data-1", scale: "messages", format: count },
  { label: "Lag", colour: "--data-2", scale: "time", format: duration },
];
const livePlot = timePlot(one("#live-plot"), LAG, { height: 220, live: true });

const FIGURES = {
  seconds_behind: (c) => duration(1000 * c.seconds_behind), caught_up_in_s: (c) => (c.caught_up_in_s === null ? "" : `caught up in ${duration(1000 * c.caught_up_in_s)}`),
  waiting_messages: (c) => count(c.waiting_messages), in_flight_messages: (c) => count(c.in_flight_messages),
  acknowledged_messages: (c) => count(c.acknowledged_messages), lag_messages: (c) => count(c.lag_messages), lag_bytes: (c) => bytes(c.lag_bytes),
  outbox_bytes: (c) => bytes(c.outbox_bytes), memory_percent: (c) => `${percent(c.memory_percent)} of the limit`,
  spool_bytes: (c) => bytes(c.spool_bytes), disk_percent: (c) => `${percent(c.disk_percent)} of the limit`,
  rate_out_messages: (c) => rate(c.rate_out_messages), delivered: (c) => `${count(c.delivered_messages)} in all`,
  write_blocked_ms: (c) => duration(c.write_blocked_ms), transport: (c) => c.transport, protocol: (c) => c.protocol, remote: (c) => c.remote,
  user: (c) => c.user || "–", pool: (c) => c.pool, published_messages: (c) => count(c.published_messages), delivered_bytes: (c) => bytes(c.delivered_bytes),
};

let state = one("#state [data-state]")?.dataset.state, health = "";
let shape = "";

function update() {
  const client = feed.clients.get(name);
  const now = client?.delivery ?? "gone", fares = client?.health ?? "";
  if (fares !== health) { health = fares; one("#health").replaceChildren(fares ? chip(fares, "health") : ""); }
  if (now !== state) { state = now; one("#state").replaceChildren(chip(now)); }
  setText(one("#state-note"), client?.offlined_since ? `since ${moment(client.offlined_since)}` : "");
  const button = one("#acts");
  if (button) button.hidden = !client;
  const note = one("#gone-note");
  if (note) note.hidden = Boolean(client);
  for (const id of ["#figures", "#live-section", "#connection-section", "#subscriptions-section"]) one(id).hidden = !client;
  if (!client) return;
  for (const [key, text] of Object.entries(FIGURES)) setText(one(`[data-figure="${key}"]`), text(client) ?? "–");
  drawLive();
  if (client.subscriptions) subscriptions(client.subscriptions);
}

function drawLive() {
  const samples = feed.memory.lagsOf(name);
  livePlot.setData([samples.map((s) => s[0] / 1000), samples.map((s) => s[1]), samples.map((s) => s[2])]);
}

function subscriptions(list) {
  const wanted = JSON.stringify(list);
  if (wanted === shape) return;
  shape = wanted;
  one("#subscriptions-none").hidden = list.length > 0;
  one("#subscriptions").replaceChildren(...list.map((s) => make("li", {},
    make("div", { class: "when" }, make("b", { class: "mono break" }, s.topic), chip(s.delivery), " ", chip(s.health, "health")),
    s.filter ? make("div", { class: "mono break" }, s.filter) : null,
    make("div", { class: "muted" }, `${s.id} · ${count(s.delivered_messages)} delivered · ${count(s.lag_messages)} behind${s.bookmark ? ` · from bookmark ${s.bookmark}` : ""}`))));
}

/** Seconds between samples; the server widens them over long times. */
const stepOf = (samples) => samples.slice(1).reduce((least, sample, index) => Math.min(least, sample.at - samples[index].at), 3600);

/** Spans in which the samples say offlined or draining, for the plot's background. */
export function spans(samples, step = stepOf(samples)) {
  const found = [];
  for (const sample of samples) {
    const colour = { offlined: "--amber-mark", draining: "--data-2", replaying: "--data-2" }[sample.state];
    if (!colour) continue;
    const last = found.at(-1);
    if (last && last[2] === colour && sample.at - last[1] <= step * 1.5) last[1] = sample.at + step;
    else found.push([sample.at, sample.at + step, colour]);
  }
  return found;
}

/** A hole between samples longer than a rest of an idle client means it was not logged on: the line must break there. */
export function withGaps(samples, gap = 90 + stepOf(samples)) {
  const columns = [[], [], []];
  let before = null;
  for (const sample of samples) {
    if (before !== null && sample.at - before > gap) { columns[0].push(before + 1); columns[1].push(null); columns[2].push(null); }
    columns[0].push(sample.at); columns[1].push(sample.lag_messages); columns[2].push(sample.lag_ms);
    before = sample.at;
  }
  return columns;
}

function history() {
  const samples = data("samples", []);
  one("#history-none").hidden = samples.length > 0;
  one("#history-table").hidden = samples.length === 0;
  if (!samples.length) return;
  one("#history-plot").hidden = false;
  const marked = spans(samples);
  timePlot(one("#history-plot"), LAG, { height: 210, bands: () => marked }).setData(withGaps(samples));
  one("#history-table tbody").replaceChildren(...samples.slice(-120).reverse().map((s) => make("tr", {},
    make("td", { class: "nowrap" }, clock(s.at * 1000)), make("td", {}, chip(s.state)), make("td", { class: "num" }, duration(s.lag_ms)),
    make("td", { class: "num" }, count(s.lag_messages)), make("td", { class: "num" }, bytes(s.lag_bytes)))));
}

function hourly() {
  const hours = data("hourly", []);
  if (!hours?.length) return;
  const marked = hours.filter((h) => h.offline_ms > 0).map((h) => [h.at / 1000 - 1800, h.at / 1000 + 1800, "--amber-mark"]);
  timePlot(one("#hourly-plot"), LAG, { height: 190, hours: true, bands: () => marked })
    .setData([hours.map((h) => h.at / 1000), hours.map((h) => h.lag_messages_max), hours.map((h) => h.lag_ms_max)]);
}

history(); hourly(); drawLive();
feed.addEventListener("change", update);
feed.addEventListener("decision", (event) => {
  if (event.detail.client === name) setText(one("#decisions-title"), "Decisions on this client (a new one: reload to read it)");
});
