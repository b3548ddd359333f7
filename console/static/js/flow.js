// The flow page: three columns of boxes with bands between them. Each side has a scale of its own: what comes in once may go out five
// hundred times, and on one scale the publishers would be hairlines. Boxes keep their places while names stay; only widths move.
import { all, make, named, one, setAttribute, setText, svg } from "./dom.js";
import { count, duration, rate } from "./format.js";
import { feed } from "./shell.js";
import { chip } from "./states.js";

const BOX = 10, GAP = 14, LEAST = 20, HAIR = 1; // pixels: a box's width, between two boxes, the least height of one, the least band
const RATE_HEIGHT = 360; // height that is shared by rates, besides the least of each box
const narrow = matchMedia("(max-width: 45rem)");
const root = one("#flow"), section = one(".flow");
let drawn = "", parts = null;

/** While there is nothing to compare with, no rate is known, and none is said. */
const measuring = () => feed.flow.span_ms === null;
const tone = (node) => (node.health === "stalled" ? " asks stalled" : node.health ? " asks" : "");
const many = (node) => node.members > 1;

/** Where a box leads: a client's page, a search for its group, or the topic's messages. */
function address(node, kind) {
  if (kind === "topics") return section.dataset.messages && node.name !== "others" ? `${section.dataset.messages}?topic=${encodeURIComponent(node.name)}` : null;
  if (node.name === "others" || node.name === "more slow") return "/clients/";
  return many(node) ? `/clients/?q=${encodeURIComponent(node.name.replace(/\*$/, ""))}` : `/clients/${encodeURIComponent(node.name)}/`;
}

function words(node, kind) {
  const group = many(node) ? `${count(node.members)} ${kind === "topics" ? "topics" : kind === "publishers" ? "publishers" : "clients"}, ` : "";
  const figures = measuring() ? "measuring its rate" : kind === "topics" ? `${rate(node.rate_in)} /s in, ${rate(node.rate)} /s out` : `${rate(node.rate)} /s`;
  return `${group}${figures}${node.health && node.lag_ms ? `, ${node.health}, ${duration(node.lag_ms)} behind` : node.health ? `, ${node.health}` : ""}`;
}

/** Heights and places: {boxes: {kind: [{node, x, y, height}]}, bands: [{from, to, top, bottom…}], width, height}. */
function layout(flow, width) {
  const kinds = ["publishers", "topics", "clients"], side = narrow.matches ? 0 : Math.min(200, width * 0.2);
  const xs = [side, (width - BOX) / 2, width - side - BOX];
  const totals = [flow.published, flow.handed].map((links) => links.reduce((sum, link) => sum + link.rate, 0) || 1);
  const share = (link, at) => link.rate / totals[at];
  const weights = { publishers: flow.publishers.map(() => 0), topics: flow.topics.map(() => 0), clients: flow.clients.map(() => 0) };
  const inTopic = flow.topics.map(() => 0), outTopic = flow.topics.map(() => 0);
  for (const link of flow.published) { weights.publishers[link.source] += share(link, 0); inTopic[link.target] += share(link, 0); }
  for (const link of flow.handed) { outTopic[link.source] += share(link, 1); weights.clients[link.target] += share(link, 1); }
  weights.topics = flow.topics.map((_, at) => Math.max(inTopic[at], outTopic[at]));
  const least = narrow.matches ? 34 : LEAST, boxes = {};
  const heights = kinds.map((kind) => weights[kind].reduce((sum, weight) => sum + Math.max(least, weight * RATE_HEIGHT) + GAP, -GAP));
  const height = Math.max(120, ...heights) + 4;
  kinds.forEach((kind, column) => {
    // Fewer boxes stand further apart, in the middle of the height.
    const spare = height - 4 - heights[column], extra = flow[kind].length > 1 ? Math.min(40, spare / flow[kind].length) : 0;
    let y = 2 + (spare - extra * (flow[kind].length - 1)) / 2;
    boxes[kind] = flow[kind].map((node, at) => {
      const box = { node, kind, x: xs[column], y, height: Math.max(least, weights[kind][at] * RATE_HEIGHT), left: 0, right: 0 };
      y += box.height + GAP + extra;
      return box;
    });
  });
  const bands = [...banded(flow.published, boxes.publishers, boxes.topics, totals[0]), ...banded(flow.handed, boxes.topics, boxes.clients, totals[1])];
  return { kinds, boxes, bands, width, height };
}

/** Bands leave and reach a box in the order of the other ends, centred on its side. */
function banded(links, from, to, total) {
  const thick = (link) => Math.max(HAIR, (link.rate / total) * RATE_HEIGHT);
  const ends = (boxes, end) => boxes.map((box, at) => (box.height - links.filter((link) => link[end] === at).reduce((sum, link) => sum + thick(link), 0)) / 2);
  const outgoing = ends(from, "source"), incoming = ends(to, "target");
  return links.map((link) => {
    const a = from[link.source], b = to[link.target], size = thick(link);
    const band = { link, from: a, to: b, size, y0: a.y + outgoing[link.source] + size / 2, y1: b.y + incoming[link.target] + size / 2 };
    outgoing[link.source] += size; incoming[link.target] += size;
    return band;
  });
}

const path = ({ from, to, y0, y1 }) => { const x0 = from.x + BOX, x1 = to.x, middle = (x0 + x1) / 2; return `M${x0} ${y0.toFixed(1)}C${middle} ${y0.toFixed(1)} ${middle} ${y1.toFixed(1)} ${x1} ${y1.toFixed(1)}`; };

/** What the picture is made of; while it is the same, elements are kept, and with them the focus. */
const shape = (flow) => JSON.stringify([root.clientWidth, narrow.matches, ["publishers", "topics", "clients"].map((kind) => flow[kind].map((node) => [node.name, node.members, node.health])), [flow.published, flow.handed].map((links) => links.map((link) => [link.source, link.target]))]);

function draw(flow) {
  const placed = layout(flow, Math.max(320, root.clientWidth)), key = shape(flow);
  if (key !== drawn) build(placed, key);
  const { bands, boxes, kinds } = placed;
  setAttribute(parts.picture, "viewBox", `0 0 ${placed.width} ${placed.height}`);
  setAttribute(parts.picture, "height", String(placed.height));
  bands.forEach((band, at) => { const line = parts.bands[at]; setAttribute(line, "d", path(band)); setAttribute(line, "stroke-width", band.size.toFixed(1)); line.classList.toggle("still", !band.link.rate && flow.span_ms !== null); line.firstChild.textContent = `${band.from.node.name} → ${band.to.node.name}: ${measuring() ? "measuring" : `${rate(band.link.rate)} /s`}`; });
  kinds.flatMap((kind) => boxes[kind]).forEach((box, at) => positionNode(parts.boxes[at], box, placed.width));
}

function build({ kinds, boxes, bands, width }, key) {
  drawn = key;
  const lines = bands.map((band) => svg("path", { class: `flow-band${tone(band.to.node)}` }, svg("title")));
  const holders = kinds.flatMap((kind) => boxes[kind]).map(boxElement);
  const picture = svg("svg", { class: "flow-picture", role: "group", "aria-labelledby": "flow-title", width: "100%" }, svg("g", { "aria-hidden": "true" }, ...lines), ...holders.map((holder) => holder.root));
  parts = { picture, bands: lines, boxes: holders };
  root.replaceChildren(picture);
}

function boxElement({ node, kind }) {
  const href = address(node, kind), title = svg("title"), bar = svg("rect", { class: "flow-box", width: BOX, rx: 2 }, title);
  const name = svg("text", { class: "flow-name" }), rateText = svg("text", { class: "flow-rate" });
  const made = svg(href ? "a" : "g", { "data-name": node.name, ...(href ? {} : { role: "group" }), class: `flow-node flow-${kind}${tone(node)}`, ...(href ? { href } : {}) }, bar, name, " ", rateText);
  if (href) made.setAttribute("data-row-link", "");
  return { root: made, bar, name, rateText, title };
}

/** A label stands beside its box: outside at both ends, right of it in the middle; on a telephone above, by the column's edge. */
function positionNode({ root: made, bar, name, rateText, title }, { node, kind, x, y, height }, width) {
  for (const [key, value] of Object.entries({ x, y: y.toFixed(1), height: height.toFixed(1) })) setAttribute(bar, key, String(value));
  const last = kind === "clients", small = narrow.matches, middle = y + height / 2;
  const anchor = kind === "publishers" ? (small ? "start" : "end") : last ? (small ? "end" : "start") : small ? "middle" : "start";
  const at = kind === "publishers" ? (small ? x + BOX + 4 : x - 8) : last ? (small ? x - 4 : x + BOX + 8) : small ? x + BOX / 2 : x + BOX + 6;
  const maxWidth = small ? width / 3 - 14 : Math.min(200, width * 0.2) - 12;
  for (const [text, line] of [[name, middle - 2], [rateText, middle + 11]]) { setAttribute(text, "x", at.toFixed(1)); setAttribute(text, "y", line.toFixed(1)); setAttribute(text, "text-anchor", anchor); }
  setText(name, cut(node.name, Math.floor(maxWidth / 6.6)));
  const isBehind = node.health && node.lag_ms;
  setText(rateText, cut(`${many(node) ? `${count(node.members)} · ` : ""}${measuring() ? "measuring" : kind === "topics" && !small ? `${rate(node.rate_in)} in, ${rate(node.rate)} out /s` : `${rate(node.rate)} /s`}${isBehind ? ` · ${small ? duration(node.lag_ms).replace(/(min|h|d) .*/, "$1") : `${duration(node.lag_ms)} behind`}` : ""}`, Math.floor(maxWidth / 5.4)));
  setText(title, `${node.name}: ${words(node, kind)}`);
  setAttribute(made, "aria-description", title.textContent);
}

/** In its middle, so that twins stay apart. */
function cut(text, maxLength) {
  if (text.length <= maxLength) return text;
  const tail = Math.min(6, Math.floor(maxLength / 3));
  return `${text.slice(0, Math.max(1, maxLength - tail - 1))}…${text.slice(-tail)}`;
}

function tables(flow) {
  if (!one("#flow-tables").open) return;
  const rows = (links, from, to, kind) => [...links].sort((a, b) => b.rate - a.rate).map((link) => make("tr", {}, make("td", {}, named(from[link.source].name)), make("td", {}, named(to[link.target].name), to[link.target].health ? " " : null, to[link.target].health && kind === "clients" ? chip(to[link.target].health, "health") : null), make("td", { class: "num" }, measuring() ? "measuring" : rate(link.rate))));
  one("#flow-published tbody").replaceChildren(...rows(flow.published, flow.publishers, flow.topics, "topics"));
  one("#flow-handed tbody").replaceChildren(...rows(flow.handed, flow.topics, flow.clients, "clients"));
}

/** "2 stalled, 1 falling behind; 5,200 /s in, 61,000 /s out." in place of a title. */
function verdict(flow) {
  const problems = [["stalled", "red"], ["flapping", "amber"], ["falling behind", "amber"], ["not recorded", "amber"]].map(([key, colour]) => [feed.totals?.health?.[key] ?? 0, key, colour]).filter(([number]) => number);
  const sums = [flow.published, flow.handed].map((links) => links.reduce((sum, link) => sum + link.rate, 0));
  const rates = measuring() ? (problems.length ? "measuring rates…" : "Measuring rates…") : `${rate(sums[0])} /s in, ${rate(sums[1])} /s out`;
  const words = [...problems.flatMap(([number, key, colour], at) => [at ? ", " : "", make("span", { class: colour }, `${count(number)} ${key}`)]), problems.length ? "; " : "", rates];
  const title = one("#verdict"), text = words.map((word) => word.textContent ?? word).join("");
  if (title.textContent !== text) title.replaceChildren(...words);
}

function update() {
  const flow = feed.flow;
  if (!flow) return;
  const empty = !flow.publishers.length && !flow.clients.length;
  one("#flow-none").hidden = !empty;
  one("#flow-legend").hidden = root.hidden = one("#flow-tables").hidden = empty;
  setText(one("#flow-note"), empty ? "" : flow.span_ms === null ? "measuring the first second" : `over the last ${Math.max(1, Math.round(flow.span_ms / 1000))} s`);
  verdict(flow);
  if (!empty) { draw(flow); tables(flow); }
}

feed.addEventListener("change", update);
one("#flow-tables").addEventListener("toggle", update);
new ResizeObserver(() => update()).observe(root);
narrow.addEventListener("change", update);
feed.requestView({ view: "flow" });
// Who is under the pointer or has the focus keeps its bands; the others' step back.
for (const [kind, on] of [["pointerover", true], ["pointerout", false], ["focusin", true], ["focusout", false]]) root.addEventListener(kind, (event) => light(event.target.closest?.(".flow-node"), on));
function light(node, on) {
  if (!parts || !node) return;
  const name = node.dataset.name;
  root.classList.toggle("lit", on);
  all(".flow-band", root).forEach((band) => { const [from, to] = band.textContent.split(": ")[0].split(" → "); band.classList.toggle("on", on && (from === name || to === name)); });
}
