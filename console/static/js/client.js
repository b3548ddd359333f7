// One client's page: four lanes over one time axis with decisions, revisions and restarts on it, and its figures live.
import { data, icon, make, one, setText } from "./dom.js";
import { bytes, clock, count, duration, inWords, moment, percent, rate } from "./format.js";
import { timePlot } from "./plot.js";
import { feed } from "./shell.js";
import { chip, does, wordOf } from "./states.js";

const name = one("#head").dataset.client, lanes = one("#lanes");
const RANGE_S = Number(lanes.dataset.seconds), STEP_S = Number(lanes.dataset.step), REFRESH_MS = 10_000, POINTS = 600;
const LAST_S = 10_000_000_000; // in the year 2286: what an address says beyond it is no moment
const MINUTE_DAYS = Number(lanes.dataset.minuteDays), MINUTES_S = 86_400 * MINUTE_DAYS + 600; // beyond it only the pipeline's hours are kept
const SOON_MS = 600_000;
const SAMPLE_VALID_S = 75; // an idle client is sampled once a minute; a longer silence is a gap in the data

/** How many it is behind by; a replay by that many at most. */
function behind(one) { return one.lag_at_most ? `at most ${count(one.lag_messages)}` : count(one.lag_messages); }

const FIGURES = {
  seconds_behind: (c) => duration(1000 * c.seconds_behind), caught_up_in_s: (c) => (c.caught_up_in_s === null ? "–" : duration(1000 * c.caught_up_in_s)),
  in_flight_messages: (c) => count(c.in_flight_messages), acknowledged_messages: (c) => count(c.acknowledged_messages),
  lag_messages: behind, lag_bytes: (c) => bytes(c.lag_bytes), outbox_bytes: (c) => bytes(c.outbox_bytes),
  memory_percent: (c) => percent(c.memory_percent), spool_bytes: (c) => bytes(c.spool_bytes), disk_percent: (c) => percent(c.disk_percent),
  rate_out_messages: (c) => rate(c.rate_out_messages), delivered: (c) => count(c.delivered_messages), write_blocked_ms: (c) => duration(c.write_blocked_ms),
  member: (c) => c.member || "–", transport: (c) => c.transport, remote: (c) => c.remote,
  published_messages: (c) => count(c.published_messages), delivered_bytes: (c) => bytes(c.delivered_bytes),
};

let state = one("#state [data-state]")?.dataset.state, health = one("#health [data-state]")?.dataset.state ?? "", shape = "";
let source = "samples", step = STEP_S;
let samples = data("samples", []), marks = data("marks", []);

function update() {
  const client = feed.clients.get(name), now = client?.delivery ?? (one("#slow [data-away]") ? "away" : "gone"), fares = client?.health ?? "";
  if (fares !== health) { health = fares; one("#health").replaceChildren(fares ? chip(fares, "health") : ""); }
  if (now !== state) { state = now; one("#state").replaceChildren(chip(now)); }
  forecast(client?.forecast);
  setText(one("#state-note"), client?.offlined_since ? `since ${moment(client.offlined_since)}` : "");
  for (const id of ["#acts", "#figures", "#connection-section", "#subscriptions-section"]) { const part = one(id); if (part) part.hidden = !client; }
  const note = one("#gone-note"), verdict = one("#why").parentElement;
  verdict.hidden = !client;
  if (note) note.hidden = Boolean(client);
  if (!client) return;
  for (const [key, text] of Object.entries(FIGURES)) setText(one(`[data-figure="${key}"]`), text(client) ?? "–");
  setText(one("#why"), client.why_slow ? inWords(client.why_slow.sentence) : client.health === "keeps up" ? "Keeping up." : "The broker reports no reason.");
  setText(one("#waits"), waits(client));
  if (client.subscriptions) subscriptions(client.subscriptions);
}

/** What will be done to it, and when: of a limit that only records, what would be. Soon is red, later amber. */
function forecast(found) {
  const at = one("#forecast"), fires = found?.fires_in_ms ?? null, sure = found?.mode === "enforce";
  const text = fires === null ? "" : `${does(found.action, found.mode)} in ${duration(fires)}`;
  if (at.textContent !== text) at.replaceChildren(...(text ? [icon("clock"), text] : []));
  at.classList.toggle("state-bad", sure && fires !== null && fires < SOON_MS);
  at.classList.toggle("state-warn", sure && fires !== null && fires >= SOON_MS);
}

/** What waits, since when, and what of it is lost for good. */
function waits(client) {
  if (!client.lag_messages) return "No backlog.";
  const lost = client.lost_messages ? `${count(client.lost_messages)} messages lost.` : "No losses.";
  const again = client.caught_up_in_s === null ? `No catch-up estimate: ${client.caught_up_why_none}.` : `At the current rate, caught up in  ${duration(1000 * client.caught_up_in_s)}.`;
  const waits = client.lag_at_most ? `Its replay has ${count(client.lag_messages)} records of the log to read, of all topics.` : `${count(client.lag_messages)} messages queued, the oldest for ${duration(client.lag_ms)}.`;
  return `${waits} ${lost} ${again}`;
}

function subscriptions(list) {
  const nextShape = JSON.stringify(list);
  if (nextShape === shape) return;
  shape = nextShape;
  one("#subscriptions-none").hidden = list.length > 0;
  one("#subscriptions").replaceChildren(...list.map((s) => make("li", {},
    make("div", { class: "when" }, make("b", { class: "mono break" }, s.topic), chip(s.delivery), " ", chip(s.health, "health")),
    s.filter ? make("div", { class: "mono break" }, s.filter) : null,
    make("div", { class: "muted" }, `${s.id} · ${count(s.delivered_messages)} delivered · ${behind(s)} behind${s.bookmark ? ` · from bookmark ${s.bookmark}` : ""}`))));
}

// A part of the range that was drawn with the pointer stands in the address: it can be gone back from, and passed on.
const readZoom = () => {
  const query = new URLSearchParams(location.search), [from, to] = [Number(query.get("from")), Number(query.get("to"))];
  return from > 0 && to > from && to < LAST_S ? [from, to] : null;
};
let zoom = readZoom();
const span = () => zoom ?? [Date.now() / 1000 - RANGE_S, Date.now() / 1000];

function zoomTo(range) {
  if (!range && !zoom) return;
  const query = new URLSearchParams(location.search);
  query.set("range", lanes.dataset.range);
  for (const [key, index] of [["from", 0], ["to", 1]]) if (range) query.set(key, range[index]); else query.delete(key);
  history.pushState(null, "", `${location.pathname}?${query}`);
  zoom = range;
  refresh(true);
}

// The lanes share one range and one cursor; what a range has no figures of isn't shown.
const shared = { height: 96, sync: "client", marks: () => marks, range: span, zoomed: zoomTo };
const lag = timePlot(one("#lane-lag"), [{ label: "Lag", colour: "--data-1", scale: "time", format: duration }], { ...shared, axes: false, labels: true });
const backlogPlot = timePlot(one("#lane-held"), [{ label: "Memory", colour: "--data-2", scale: "bytes", format: bytes }, { label: "Spool", colour: "--data-1", scale: "bytes", format: bytes }], shared);
const rates = timePlot(one("#lane-rates"), [{ label: "Sent /s", colour: "--data-1", scale: "messages", format: rate }], { ...shared, axes: false });

function draw() {
  const none = samples.length === 0;
  one("#history-none").hidden = !none;
  note();
  one("#history-table").hidden = none;
  lanes.hidden = none;
  if (none) return;
  lag.setData(columns(samples, ["lag_ms"]));
  backlogPlot.setData(columns(samples, ["outbox_bytes", "spool_bytes"]));
  rates.setData(columns(samples, ["rate_out_messages"]));
  drawStates();
  one("#history-table tbody").replaceChildren(...samples.slice(-120).reverse().map((s) => make("tr", {},
    make("td", { class: "nowrap" }, clock(s.at * 1000)), make("td", {}, chip(s.state)), make("td", { class: "num" }, duration(s.lag_ms)),
    make("td", { class: "num" }, count(s.lag_messages)), make("td", { class: "num" }, bytes(s.lag_bytes)), make("td", { class: "num" }, rate(s.rate_out_messages)))));
}

/** What the marks are, and from when on anything is kept: a line that begins late is no client that came late. */
function note() {
  const [from] = span(), late = samples.length && samples[0].at - from > Math.max(600, 0.02 * (span()[1] - from));
  const retention = source === "hours" ? `by the minute for ${MINUTE_DAYS} days, older data by the hour from the pipeline` : Date.now() / 1000 - from > MINUTES_S ? `kept for ${MINUTE_DAYS} days; longer only as hours that the pipeline’s job client-history computes` : "";
  setText(one("#timeline-note"), [late ? `no data before ${clock(samples[0].at * 1000)}` : "", retention].filter(Boolean).join("; ") || "marks: decisions, revisions, restarts");
  one("#zoom-out").hidden = !zoom;
}

// The pipeline's hours leave out those in which the broker had nothing to say.
const hole = () => Math.max(source === "hours" ? 2 * 3600 : SAMPLE_VALID_S, 2 * step);

/** Columns for a plot; a hole longer than a rest means that it was not connected, so the line breaks there. */
export function columns(rows, keys, gap = hole()) {
  const found = [[], ...keys.map(() => [])];
  let before = null;
  for (const row of rows) {
    if (before !== null && row.at - before > gap) { found[0].push(before + 1); keys.forEach((_, index) => found[index + 1].push(null)); }
    found[0].push(row.at);
    keys.forEach((key, index) => found[index + 1].push(row[key] ?? null));
    before = row.at;
  }
  return found;
}

/** Spans of one delivery state, for the lowest lane: [from, to, state]. */
export function spans(rows, gap = hole()) {
  const found = [];
  for (const row of rows) {
    const last = found.at(-1);
    if (last && last[2] === row.state && row.at - last[1] <= gap) last[1] = row.at;
    else found.push([last && row.at - last[1] <= gap ? last[1] : row.at, row.at, row.state]);
  }
  return found;
}

function drawStates() {
  const [from, to] = span(), root = one("#lane-states");
  root.replaceChildren(...spans(samples).filter(([start, end]) => end >= from && start <= to).map(([start, end, delivery]) => {
    const left = (100 * (Math.max(start, from) - from)) / (to - from), width = Math.max(0.15, (100 * (Math.min(end, to) - Math.max(start, from))) / (to - from));
    const part = make("span", { class: `state-span span-${delivery}`, title: `${wordOf("delivery", delivery).word}, ${clock(start * 1000)} to ${clock(end * 1000)}` }, width > 9 ? wordOf("delivery", delivery).word : "");
    part.style.left = `${left}%`;
    part.style.width = `${width}%`;
    return part;
  }));
  root.append(...marks.filter((mark) => mark.at >= from && mark.at <= to).map((mark) => {
    const line = make("i", { class: `state-mark of-${mark.kind}${mark.mode === "shadow" ? " shadow" : ""}`, title: `${mark.label}, ${clock(1000 * mark.at)}` });
    line.style.left = `${(100 * (mark.at - from)) / (to - from)}%`;
    return line;
  }));
}

async function refresh(now = false) {
  if (!now && (feed.paused || document.visibilityState !== "visible")) return;
  const requestedZoom = zoom, [from, to] = span().map((seconds) => new Date(1000 * seconds).toISOString());
  const requestedStep = zoom ? Math.max(1, Math.round((zoom[1] - zoom[0]) / POINTS)) : STEP_S;
  try {
    const answer = await fetch(`/api/v1/statistics?of=client&name=${encodeURIComponent(name)}&from=${from}&to=${to}&step=${requestedStep}`, { headers: { Accept: "application/json" } });
    const found = answer.ok ? await answer.json() : null;
    if (!found || requestedZoom !== zoom) return; // zoomed meanwhile: another answer is on its way
    ({ points: samples, source, step } = found);
    draw();
  } catch { /* the frame says that the console doesn't answer */ }
}

function hourly() {
  const hours = data("hourly", []);
  if (!hours?.length) return;
  const marked = hours.filter((h) => h.offline_ms > 0).map((h) => [h.at / 1000, h.at / 1000 + 3600, "--heat-3"]);
  timePlot(one("#hourly-plot"), [{ label: "Messages behind", colour: "--data-1", scale: "messages", format: count }, { label: "Lag", colour: "--data-2", scale: "time", format: duration }], { height: 190, hours: true, bands: () => marked })
    .setData([hours.map((h) => h.at / 1000 + 1800), hours.map((h) => h.lag_messages_max), hours.map((h) => h.lag_ms_max)]);
}

feed.requestView({ view: "client", client: name });
draw(); hourly(); refresh();
setInterval(() => refresh(), REFRESH_MS);
one("#zoom-out").addEventListener("click", () => zoomTo(null));
addEventListener("popstate", () => { zoom = readZoom(); refresh(true); });
feed.addEventListener("change", update);
feed.addEventListener("decision", (event) => {
  if (event.detail.client !== name) return;
  marks = [...marks, { at: event.detail.at / 1000, kind: "decision", label: event.detail.action, mode: event.detail.mode }];
  setText(one("#decisions-title"), "Drop dossier (a new decision: reload to read it)");
});
document.addEventListener("sluice:zone", draw);
