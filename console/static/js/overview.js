// The overview: rates as a plot, pools as gauges with their numbers, clients by state, newest decisions on top.
import { icon, make, named, one, setAttribute, setText, svg } from "./dom.js";
import { bytes, clock, count, duration, inWords, percent, rate } from "./format.js";
import { timePlot } from "./plot.js";
import { feed, times } from "./shell.js";
import { DELIVERIES, act, chip } from "./states.js";

const plot = timePlot(one("#rates"), [
  { label: "Messages in /s", colour: "--data-1", scale: "messages", format: rate },
  { label: "Messages out /s", colour: "--data-2", scale: "messages", format: rate },
], { live: true });

// What was before this tab, from the server's own history: [at in ms, messages in, messages out].
let earlier = [];

async function fetchEarlier() {
  try {
    const answer = await fetch("/api/v1/statistics?of=instance&step=1", { headers: { Accept: "application/json" } });
    if (!answer.ok) return;
    earlier = (await answer.json()).points.map((point) => [point.at * 1000, point.messages_in, point.messages_out]);
    drawRates();
  } catch { /* the plot then begins with this tab */ }
}

function drawRates() {
  const seen = feed.memory.rates, first = seen[0]?.[0] ?? Infinity, oldest = Date.now() - 15 * 60_000;
  const samples = [...earlier.filter((s) => s[0] > oldest && s[0] < first), ...seen];
  plot.setData([samples.map((s) => s[0] / 1000), samples.map((s) => s[1]), samples.map((s) => s[2])]);
}

function figures(status) {
  const rates = status.rates ?? {};
  put("messages-in", rate(rates.messages_in)); put("bytes-in", `${bytes(rates.bytes_in)}/s`);
  put("messages-out", rate(rates.messages_out)); put("bytes-out", `${bytes(rates.bytes_out)}/s`);
  put("clients", count(feed.clients.size));
  put("next-sequence", count(status.next_sequence));
  const behind = (status.next_sequence ?? 0) - 1 - (status.durable_sequence ?? 0);
  put("durable", behind > 0 ? `${count(behind)} not yet on disk` : "all on disk");
  put("journal-bytes", bytes(status.journal?.bytes)); put("journal-segments", `${count(status.journal?.segments)} segments`);
  put("uptime", duration((status.uptime_s ?? 0) * 1000)); put("pid", under(status));
  const slowest = [...feed.clients.values()].reduce((worst, client) => (behind_s(client) > behind_s(worst) ? client : worst), null);
  put("worst-lag", slowest ? duration(1000 * behind_s(slowest)) : "none"); put("worst-client", slowest ? slowest.name : "every client is up to date");
}

// A standstill is the broker's own defect, so it stands by the process and not by a client.
function under(status) {
  const found = status.totals?.standstills ?? 0, process = status.pid ? `process ${status.pid}` : "";
  return found ? `${process}, ${count(found)} standstill${found === 1 ? "" : "s"}: see its log` : process;
}

const behind_s = (client) => client?.seconds_behind ?? 0;
const put = (key, text) => setText(one(`[data-figure="${key}"]`), text);

function tally(status) {
  const counts = Object.fromEntries(Object.keys(DELIVERIES).map((name) => [name, 0]));
  for (const client of feed.clients.values()) counts[client.delivery] = (counts[client.delivery] ?? 0) + 1;
  for (const [name, number] of Object.entries(counts)) setText(one(`[data-tally="${name}"]`), count(number));
}

function pools(status) {
  const root = one("#pools");
  const wanted = status.pools ?? [];
  if (root.dataset.names !== wanted.map((pool) => pool.name).join("|")) {
    root.dataset.names = wanted.map((pool) => pool.name).join("|");
    root.replaceChildren(...wanted.map(poolElement));
  }
  wanted.forEach((pool, index) => {
    const element = root.children[index];
    gauge(one("[data-gauge=memory]", element), pool.memory_used, pool.memory_limit);
    gauge(one("[data-gauge=disk]", element), pool.disk_used, pool.disk_limit);
  });
}

function poolElement(pool) {
  return make("div", { class: "pool" },
    make("h3", {}, pool.name, make("span", { class: "tag" }, (pool.transports ?? []).join(", ") || "no transport")),
    gaugeElement("memory", "Memory"), gaugeElement("disk", "Disk (spools)"),
    pool.disk_path ? make("p", { class: "muted mono break" }, pool.disk_path) : null);
}

function gaugeElement(key, label) {
  const bar = svg("svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { width: 0, height: 8 }));
  return make("div", { class: "gauge", "data-gauge": key, role: "meter", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": "0" },
    make("div", { class: "gauge-head" }, make("span", {}, label), make("span", { class: "num", "data-value": "" })), bar);
}

function gauge(element, used, limit) {
  const share = limit ? Math.min(100, (100 * (used ?? 0)) / limit) : 0;
  const text = limit ? `${bytes(used)} of ${bytes(limit)} · ${percent(share)}` : `${bytes(used)}, no limit`;
  setText(one("[data-value]", element), text);
  setAttribute(element, "aria-valuenow", share.toFixed(1));
  setAttribute(element, "aria-valuetext", text);
  const bar = one(".bar", element);
  bar.setAttribute("class", `bar ${share >= 90 ? "bad" : share >= 70 ? "warn" : ""}`);
  one("rect", bar).setAttribute("width", share.toFixed(2));
}

function transports(status) {
  one("#transports").replaceChildren(...(status.transports ?? []).map((transport) => make("tr", {},
    make("td", { class: "first" }, make("b", {}, transport.name)),
    make("td", { "data-label": "Kind" }, transport.kind === "websocket" ? "WebSocket" : String(transport.kind).toUpperCase()),
    make("td", { class: "mono", "data-label": "Address" }, `${transport.host}:${transport.port}`),
    make("td", { "data-label": "State" }, make("span", { class: `state state-${transport.enabled ? "enabled" : "disabled"}` },
      icon(transport.enabled ? "circle-check" : "player-pause"), transport.enabled ? "Listening" : "Disabled")),
    make("td", { class: "num", "data-label": "Clients" }, count(transport.clients)),
    make("td", { "data-label": "Pool" }, transport.pool ?? "–"))));
}

function slowest() {
  const rows = [...feed.clients.values()].filter((client) => client.lag_messages > 0 || client.delivery !== "live")
    .sort((a, b) => behind_s(b) - behind_s(a)).slice(0, 5);
  one("#slowest-none").hidden = rows.length > 0;
  one("#slowest").replaceChildren(...rows.map((client) => make("tr", { class: `row-${client.delivery}` },
    make("td", { class: "first" }, make("a", { class: "client-name", href: `/clients/${encodeURIComponent(client.name)}/` }, client.name)),
    make("td", { "data-label": "Delivery" }, chip(client.delivery)),
    make("td", { "data-label": "Health" }, chip(client.health, "health")),
    make("td", { class: "num", "data-label": "Lag" }, duration(1000 * behind_s(client))),
    make("td", { class: "num", "data-label": "Messages" }, count(client.lag_messages)),
    make("td", { class: "num", "data-label": "Bytes" }, bytes(client.lag_bytes)))));
}

function addDecision(event) {
  const decision = event.detail, list = one("#decisions");
  one("#decisions-none")?.remove();
  const at = decision.at;
  list.prepend(make("li", {}, make("div", { class: "when" }, make("time", { "data-ms": String(Math.round(at)) }, clock(at)),
    ...act(decision.action, decision.mode), make("a", { href: `/clients/${encodeURIComponent(decision.client)}/` }, named(decision.client))),
    make("div", {}, inWords(decision.sentence ?? decision.reason))));
  while (list.children.length > 8) list.lastElementChild.remove();
  times(list);
}

function update() {
  const status = feed.broker;
  if (!status) return;
  figures(status); tally(status); pools(status); transports(status); slowest(); drawRates();
}

feed.addEventListener("change", update);
feed.addEventListener("decision", addDecision);
drawRates();
fetchEarlier();
