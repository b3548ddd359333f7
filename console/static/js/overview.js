// The overview: the verdict and the heat map as the server says them, pools and rates live, newest decisions on top.
import { cone } from "./cone.js";
import { all, data, make, named, one, setAttribute, setText, svg } from "./dom.js";
import { aheadOf, forecast, LEAST_MINUTES } from "./forecast.js";
import { bytes, clock, count, delay, duration, inWords, percent, rate } from "./format.js";
import { drawHeat, fetchHeat } from "./heat.js";
import { timePlot } from "./plot.js";
import { feed, times } from "./shell.js";
import { actionChips } from "./states.js";

const VERDICT_MS = 5000, HEAT_MS = 10_000, DECISIONS = 3, DELAYS_MS = 3_600_000, MAX_POOLS = 6;
const rates = timePlot(one("#rates"), [
  { label: "In /s", colour: "--data-1", scale: "messages", format: rate },
  { label: "Out /s", colour: "--data-2", scale: "messages", format: rate },
], { live: true, height: 150 });
const delays = timePlot(one("#delays"), [
  { label: "Half within", colour: "--data-1", scale: "delay", format: delay },
  { label: "99 of 100 within", colour: "--data-2", scale: "delay", format: delay },
], { height: 150, log: true, marks: () => marks });

// What was before this tab, from the server's own history: [at in ms, messages in, messages out].
let earlier = [], marks = [], poolPlot = null, poolsKnown = "", poolElements = new Map();

async function statistics(of, name, query = "") {
  try {
    const answer = await fetch(`/api/v1/statistics?of=${of}&name=${encodeURIComponent(name)}${query}`, { headers: { Accept: "application/json" } });
    return answer.ok ? (await answer.json()).points : [];
  } catch { return []; /* the plot then begins with this tab */ }
}

async function fetchEarlier() {
  earlier = (await statistics("instance", "", "&step=1")).map((point) => [point.at * 1000, point.messages_in, point.messages_out]);
  drawRates();
}

/** How long messages took in the last hour. A sample without deliveries is a hole. */
async function drawDelays() {
  const from = new Date(Date.now() - DELAYS_MS).toISOString();
  const points = await statistics("instance", "", `&from=${from}&step=10`);
  delays.setData([points.map((point) => point.at), points.map((point) => point.delay_p50_ms ?? null), points.map((point) => point.delay_p99_ms ?? null)]);
}

function drawRates() {
  const recent = feed.memory.rates, first = recent[0]?.[0] ?? Infinity, oldest = Date.now() - 15 * 60_000;
  const samples = [...earlier.filter((s) => s[0] > oldest && s[0] < first), ...recent];
  rates.setData([samples.map((s) => s[0] / 1000), samples.map((s) => s[1]), samples.map((s) => s[2])]);
}

function figures(status) {
  const now = status.rates ?? {};
  put("messages-in", rate(now.messages_in)); put("bytes-in", `${bytes(now.bytes_in)}/s`);
  put("messages-out", rate(now.messages_out)); put("bytes-out", `${bytes(now.bytes_out)}/s`);
  put("p50", delay(status.delay?.p50_ms)); put("p99", delay(status.delay?.p99_ms));
  one("#delay-words").hidden = !status.delay;
  one("#delay-none").hidden = Boolean(status.delay);
  const behind = (status.next_sequence ?? 0) - 1 - (status.durable_sequence ?? 0);
  put("durable", behind > 0 ? `${count(behind)} records` : "nothing");
  const segments = status.journal?.segments ?? 0;
  put("journal-bytes", `${bytes(status.journal?.bytes)} in ${count(segments)} segment${segments === 1 ? "" : "s"}`);
  put("uptime", up(status));
}

// A standstill is the broker's own defect, so it stands by the process and not by a client.
function up(status) {
  const found = status.totals?.standstills ?? 0;
  return `${duration((status.uptime_s ?? 0) * 1000)}${found ? `, ${count(found)} stall${found === 1 ? "" : "s"}: see its log` : ""}`;
}

const put = (key, text) => setText(one(`[data-figure="${key}"]`), text);
const poolWord = (name) => (name === "instance" ? "shared" : name.replace(/^transport:/, ""));
const share = (used, limit) => (limit ? Math.min(100, (100 * (used ?? 0)) / limit) : 0);

const fullness = (pool) => share(pool.memory_used, pool.memory_limit);
/** Which one: each member of a group has pools of the same names. */
const keyOf = (pool) => (pool.member ? `${pool.name} of ${pool.member}` : pool.name);
const poolTitle = (pool) => poolWord(pool.name) + (pool.member ? ` at ${pool.member}` : "");
const namesOf = (pools) => pools.map(keyOf).sort().join("|");

function pools(status) {
  const known = status.pools ?? [], now = namesOf(known);
  if (now !== poolsKnown) { poolsKnown = now; drawPools(known); }
  for (const pool of known) {
    const shown = poolElements.get(keyOf(pool));
    if (!shown) continue;
    gauge(one("[data-gauge=memory]", shown.root), pool.memory_used, pool.memory_limit);
    gauge(one("[data-gauge=disk]", shown.root), pool.disk_used, pool.disk_limit);
  }
}

/** The fullest pools: of each the memory over an hour, its limit, and the cone in which it goes on. The first to be full is drawn large. */
async function drawPools(known) {
  const from = new Date(Date.now() - 3_600_000).toISOString(), fullest = [...known].sort((a, b) => fullness(b) - fullness(a)).slice(0, MAX_POOLS);
  const measured = await Promise.all(fullest.map(async (pool) => {
    const points = (await statistics("pool", pool.name, `&from=${from}&step=10${pool.member ? `&member=${encodeURIComponent(pool.member)}` : ""}`)).map((point) => [point.at, point.memory_used]);
    return { pool, points, ahead: forecast(points, pool.memory_limit) };
  }));
  const worst = measured.sort((a, b) => (a.ahead?.soonest ?? Infinity) - (b.ahead?.soonest ?? Infinity) || fullness(b.pool) - fullness(a.pool));
  if (!worst.length || namesOf(known) !== poolsKnown) return; // another list came meanwhile
  poolElements = new Map(worst.map(({ pool }) => [keyOf(pool), poolElements.get(keyOf(pool)) ?? poolElement(pool)]));
  worst.forEach(({ pool, points, ahead }, index) => {
    const { root, small, note } = poolElements.get(keyOf(pool)), words = poolWords(pool, ahead, index > 0);
    for (const part of [small.root, note]) part.toggleAttribute("hidden", index === 0); // it stands above
    small.draw(points, pool.memory_limit, ahead, `Pool ${poolTitle(pool)}, memory of the last hour: ${words}`);
    setText(note, words);
  });
  const remaining = known.length - worst.length;
  one("#pools").replaceChildren(...[...poolElements.values()].map((shown) => shown.root), ...(remaining ? [make("p", { class: "meta" }, `and ${count(remaining)} less full`)] : []));
  drawPool(worst[0]);
  pools({ pools: known });
}

function drawPool({ pool, points, ahead }) {
  setText(one("#pool-word"), ahead?.full ? about(ahead.full) : percent(fullness(pool)));
  one("#pool-word").classList.toggle("amber", ahead !== null && ahead.soonest !== null);
  setText(one("#pool-words"), poolWords(pool, ahead));
  poolPlot ??= timePlot(one("#pool-plot"), [
    { label: "In use", colour: "--data-1", scale: "bytes", format: bytes }, { label: "Limit", colour: "--ink-3", scale: "bytes", format: bytes, dashed: true },
    { label: "Forecast", colour: "--amber-mark", scale: "bytes", format: bytes, dashed: true, quiet: true },
    { label: "at most", colour: "--amber-mark", scale: "bytes", format: bytes, quiet: true, width: 0 }, { label: "at least", colour: "--amber-mark", scale: "bytes", format: bytes, quiet: true, width: 0 },
  ], { height: 150, marks: () => marks, between: [[4, 5, "--amber-mark"]] });
  // The cone begins at the newest point, which is the first of its own.
  const cone = ahead?.points ?? [], before = cone.length ? points.slice(0, -1) : points, none = before.map(() => null);
  const times = [...before, ...cone].map((point) => point[0]);
  poolPlot.setData([times, [...before.map((point) => point[1]), ...cone.map((point, index) => (index ? null : point[1]))], times.map(() => pool.memory_limit || null),
    ...[1, 2, 3].map((way) => [...none, ...cone.map((point) => point[way])])]);
}

/** A forecast isn't sure of seconds. */
const about = (seconds) => (seconds < 60 ? "1 min" : duration(60_000 * Math.round(seconds / 60)).replace(" 00 s", ""));

/** After the number, or by itself where the bar beside it says how full the pool is. */
function poolWords(pool, ahead, alone = false) {
  const name = poolTitle(pool), range = ahead?.full && `${about(ahead.soonest)} to ${ahead.latest === null ? `more than ${about(aheadOf())}` : about(ahead.latest)}`;
  if (range) return alone ? `full in ${about(ahead.full)} (${range})` : `until pool ${name} is full (${range})`;
  return `${alone ? "" : `of the memory of pool ${name} is in use; `}${outlook(pool, ahead)}`;
}

function outlook(pool, ahead) {
  if (!pool.memory_limit) return "it has no limit";
  if (ahead === null) return `growth rate available after ${about(60 * LEAST_MINUTES)} of data`;
  if (ahead.full === 0) return "it is full";
  return ahead.soonest !== null ? `full in ${about(ahead.soonest)} at the earliest` : `not full within ${about(aheadOf())}`;
}

/** The log on its disk, as the server has it of its segments: the same cone, of "minutes" as long as a fifteenth of what is looked back on. */
function drawDisk() {
  const found = data("disk-history", null);
  if (!found) return;
  const { points, limit, minute } = found, ahead = forecast(points, limit, minute), days = (seconds) => duration(1000 * seconds), far = days(aheadOf(minute)), small = cone();
  if (ahead === null) return;
  const soonest = ahead.soonest && days(ahead.soonest), latest = ahead.latest === null ? `more than ${far}` : days(ahead.latest);
  const words = ahead.soonest === null ? `not full within ${far}` : ahead.full === null ? `full in ${soonest} at the earliest` : soonest === latest ? `full in ${soonest}` : `full in ${soonest} to ${latest}`;
  small.draw(points, limit, ahead, `The log on its disk: ${words}`);
  one("#disk-plot").replaceChildren(small.root, make("p", { class: "meta" }, `as it grew in the last ${days(points.at(-1)[0] - points[0][0])}: ${words}`));
}

function poolElement(pool) {
  const small = cone(), note = make("p", { class: "meta" });
  return { small, note, root: make("div", { class: "pool" }, gaugeElement("memory", `${poolTitle(pool)}, memory`), small.root, note, gaugeElement("disk", `${poolTitle(pool)}, spools`)) };
}

function gaugeElement(key, label) {
  const bar = svg("svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { width: 0, height: 8 }));
  return make("div", { class: "gauge", "data-gauge": key, role: "meter", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": "0" },
    make("div", { class: "gauge-head" }, make("span", {}, label), make("span", { class: "num", "data-value": "" })), bar);
}

function gauge(element, used, limit) {
  const part = share(used, limit), text = limit ? `${bytes(used)} of ${bytes(limit)} · ${percent(part)}` : `${bytes(used)}, no limit`;
  setText(one("[data-value]", element), text);
  setAttribute(element, "aria-valuenow", part.toFixed(1));
  setAttribute(element, "aria-valuetext", text);
  const bar = one(".bar", element);
  bar.setAttribute("class", `bar ${part >= 97 ? "bad" : part >= 85 ? "warn" : ""}`);
  one("rect", bar).setAttribute("width", part.toFixed(2));
}

function addDecision(event) {
  const decision = event.detail, list = one("#decisions");
  one("#decisions-none")?.remove();
  list.prepend(make("li", {}, make("div", { class: "when" }, make("time", { "data-ms": String(Math.round(decision.at)) }, clock(decision.at)),
    ...actionChips(decision.action, decision.mode), make("a", { href: `/clients/${encodeURIComponent(decision.client)}/` }, named(decision.client))),
    make("div", { class: "clamp", title: inWords(decision.sentence) }, inWords(decision.sentence ?? decision.reason))));
  while (list.children.length > DECISIONS) list.lastElementChild.remove();
  times(list);
}

async function verdict() {
  if (feed.paused || document.visibilityState !== "visible") return;
  try {
    const answer = await fetch(one("#verdict-first").dataset.url, { redirect: "manual" });
    if (!answer.ok) return;
    // Made by the console's own templates, which escape what comes from outside.
    const found = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of all("[data-for]", found)) {
      const target = one(`#${part.dataset.for}`);
      times(part);
      if (target && target.textContent !== part.textContent) target.replaceChildren(...part.childNodes);
    }
  } catch { /* the frame says that the console doesn't answer */ }
}

async function heat() {
  if (feed.paused || document.visibilityState !== "visible") return;
  const root = one("#heat"), found = await fetchHeat(root).catch(() => null);
  if (!found || root.matches(":hover") || root.contains(document.activeElement)) return;
  marks = found.marks;
  one("#heat-none").hidden = found.rows.length > 0;
  root.hidden = !found.rows.length;
  const everyone = feed.totals?.clients ?? found.rows.length;
  setText(one("#heat-note"), everyone > found.rows.length ? `${found.rows.length} of ${count(everyone)}, worst first` : "worst first");
  drawHeat(root, found);
}

function copySince() {
  one("#copy-since")?.addEventListener("click", async () => {
    const lines = [one("h1").textContent.trim(), one("#verdict-first").textContent.trim(), ...all("#since-list li").map((line) => line.textContent.replace(/\s+/g, " ").trim())];
    try { await navigator.clipboard.writeText(lines.join("\n")); setText(one("#copy-since span"), "Copied"); } catch { setText(one("#copy-since span"), "The browser denied access to the clipboard"); }
  });
}

function update() {
  const status = feed.broker;
  if (!status) return;
  figures(status); pools(status); drawRates();
}

feed.addEventListener("change", update);
feed.addEventListener("decision", addDecision);
document.addEventListener("sluice:zone", heat);
drawRates(); fetchEarlier(); drawDelays(); drawDisk(); copySince(); heat();
setInterval(verdict, VERDICT_MS);
setInterval(heat, HEAT_MS);
setInterval(() => { if (feed.broker && !feed.paused) { drawPools(feed.broker.pools ?? []); drawDelays(); } }, 6 * HEAT_MS);
