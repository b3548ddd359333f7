// uPlot with the console's colours. Every plot redraws its colours when the theme changes and its width when the page does.
import { colour } from "./dom.js";
import { clock, count } from "./format.js";
import { zone } from "./zone.js";
import uPlot from "../vendor/uplot-1.6.32/uPlot.esm.js";

const LIVE_SPAN_S = 120, SHORT_SPAN_S = 900;
const RANGES = {
  live: (plot, low, high) => [Math.min(low, high - LIVE_SPAN_S), high],
  hours: (plot, low, high) => [low - 1800, high + 1800],
  // One sample has no span of its own: uPlot would show years around it.
  plain: (plot, low, high) => (low === null || low === undefined ? [Date.now() / 1000 - SHORT_SPAN_S, Date.now() / 1000] : high - low < LIVE_SPAN_S ? [high - SHORT_SPAN_S, high + LIVE_SPAN_S / 2] : [low, high]),
};

const AXIS_FONT = "11px system-ui, sans-serif";

// Milliseconds fall on whole seconds, minutes and hours.
const TIME_STEPS = [1, 5, 10, 50, 100, 500, 1e3, 5e3, 1e4, 3e4, 6e4, 12e4, 3e5, 6e5, 12e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5, 1728e5, 6048e5];
// Things that are counted have no halves: without this a small axis would say 0, 1, 1, 2.
const INTEGER_STEPS = [1, 2, 5].flatMap((digit) => Array.from({ length: 13 }, (_, power) => digit * 10 ** power)).sort((a, b) => a - b);
// Bytes are read in powers of 1024.
const BYTE_STEPS = Array.from({ length: 6 }, (_, power) => [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].map((digit) => digit * 1024 ** power)).flat();
// Of ticks that read the same after rounding, the first alone is labelled.
const onceEach = (labels) => labels.map((label, index) => (index > 0 && label === labels[index - 1] ? "" : label));
const short = (text) => text.replace(/ 00 (s|min)$/, "").replace(/^0 ms$/, "0").replace(".0 s", " s").replace(/\.0+ (?=[KMGTP]iB)/, " ").replace(/^0 B$/, "0");

/** From one power of ten to another, with one at least between them. */
const tens = (plot, low, high) => {
  const from = Math.floor(Math.log10(low > 0 ? low : 1)), to = Math.ceil(Math.log10(high > 0 ? high : 10));
  return [10 ** from, 10 ** Math.max(to, from + 1)];
};
const powers = (plot, splits) => splits.map((value) => (Math.abs(Math.log10(value) % 1) < 1e-6 ? value : null));

const LOG_AXIS = { incrs: undefined, filter: powers, grid: { show: true, stroke: () => colour("--grid"), width: 1, filter: powers } };

function axis(label, format, side) {
  return {
    scale: label, side, size: 62, incrs: label === "time" ? TIME_STEPS : label === "bytes" ? BYTE_STEPS : format === count ? INTEGER_STEPS : undefined, font: AXIS_FONT,
    stroke: () => colour("--ink-3"), grid: { show: side === 3, stroke: () => colour("--grid"), width: 1 },
    ticks: { show: false }, values: (plot, values) => onceEach(values.map((value) => (value === null ? "" : short(format(value))))),
  };
}

/**
 * A plot over time. series: [{label, colour: "--s-in", scale, format}], one or two scales; the second stands on the right.
 * live: the newest two minutes at least are on the axis, and nothing can be zoomed away. hours: a bar an hour, given at its middle,
 * for the first series and points for the others, since hours without a word are left out. bands(): [[fromSeconds, toSeconds, colourName]] paints spans behind the lines, such as the time offlined.
 * between: [[upper, lower, colourName]] fills between two series, by their numbers from 1. A series that is `quiet` stands in the legend only where it has a value. log: powers of ten.
 */
export function timePlot(element, series, { height = 240, bands = () => [], marks = () => [], live = false, hours = false, sync = null, range = undefined, axes = true, zoomed = null, labels = false, between = [], log = false } = {}) {
  const scales = [...new Set(series.map((one) => one.scale))];
  const options = {
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), zone()),
    width: Math.max(200, element.clientWidth), height, padding: [labels ? 20 : 10, 8, 0, 0], // the marks' words stand above, where no line goes
    cursor: { points: { size: 6 }, drag: { x: !live, y: false, setScale: zoomed === null }, ...(zoomed ? { bind: { dblclick: () => () => { zoomed(null); return null; } } } : {}), ...(sync ? { sync: { key: sync } } : {}) }, legend: { live: true, isolate: true },
    scales: { x: { time: true, range: range ?? RANGES[live ? "live" : hours ? "hours" : "plain"] }, ...Object.fromEntries(scales.map((name) => [name, { ...(log ? { distr: 3, range: tens } : { range: (plot, low, high) => [0, high > 0 ? high * 1.12 : 1] }) }])) },
    axes: [
      { stroke: () => colour("--ink-3"), size: axes ? 34 : 4, grid: { show: false }, ticks: { stroke: () => colour("--line"), size: 4 }, font: AXIS_FONT, space: 70,
        values: !axes ? () => [] : [[86400, "{D} {MMM}", null, null, null, null, null, null, 1], [3600, "{HH}:{mm}", "\n{D} {MMM}", null, null, null, null, null, 1], [60, "{HH}:{mm}", "\n{D} {MMM}", null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
      ...scales.map((name, index) => ({ ...axis(name, series.find((one) => one.scale === name).format, index === 0 ? 3 : 1), ...(log ? LOG_AXIS : {}) })),
    ],
    series: [
      { label: "Time", value: (plot, value) => (value === null || value === undefined ? "–" : clock((value - (hours ? 1800 : 0)) * 1000)) },
      ...series.map((one, index) => ({
        label: one.label, scale: one.scale, width: one.width ?? (hours ? 1 : 1.75), stroke: () => colour(one.colour), dash: one.dashed ? [4, 3] : undefined,
        fill: index === 0 && !log ? () => `color-mix(in srgb, ${colour(one.colour)} 12%, transparent)` : undefined,
        points: { show: hours && index > 0, size: 6 }, paths: hours ? (index === 0 ? uPlot.paths.bars({ size: [0.9, 24] }) : () => null) : undefined, value: (plot, value) => (value === null || value === undefined ? "–" : one.format(value)),
      })),
    ],
    bands: between.map(([upper, lower, name]) => ({ series: [upper, lower], fill: () => `color-mix(in srgb, ${colour(name)} 22%, transparent)` })),
    hooks: { setLegend: [quieten], drawClear: [(plot) => paintBands(plot, bands())], draw: [(plot) => paintMarks(plot, marks(), labels)], setSelect: zoomed ? [(plot) => select(plot, zoomed)] : [] },
  };
  // Values that aren't there would be dashes in the legend: what is known a part of the time only is left out then.
  function quieten(plot) {
    const rows = plot.root.querySelectorAll(".u-legend .u-series"), at = plot.legend.idx;
    series.forEach((one, index) => { if (one.quiet && rows[index + 1]) rows[index + 1].hidden = at === null || at === undefined || (plot.data[index + 1]?.[at] ?? null) === null; });
  }
  const plot = new uPlot(options, [[], ...series.map(() => [])], element);
  const newest = () => { if (plot.cursor.idx === null || plot.cursor.idx === undefined) plot.setLegend({ idx: lastKnown(plot) }, false); };
  const set = plot.setData.bind(plot);
  plot.setData = (data, scales) => { set(data, scales); newest(); setTimeout(newest, 0); };
  element.addEventListener("mouseleave", () => setTimeout(newest, 0));
  new ResizeObserver(() => plot.setSize({ width: Math.max(200, element.clientWidth), height })).observe(element);
  for (const event of ["sluice:theme", "sluice:zone"]) document.addEventListener(event, () => plot.redraw(false, true));
  return plot;
}

const ONE_GESTURE_MS = 250;
let selectedAt = -ONE_GESTURE_MS;

/** A span that was drawn with the pointer, in seconds; a shaky click is none. Plots with one cursor tell the same gesture each. */
function select(plot, zoomed) {
  const { left, width } = plot.select, now = performance.now();
  if (width < 8 || now - selectedAt < ONE_GESTURE_MS) return;
  selectedAt = now;
  const span = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")].map(Math.round);
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  if (span[1] > span[0]) zoomed(span);
}

/** The last moment for which the first line has a value: what the legend says while nobody points. */
function lastKnown(plot) {
  const values = plot.data[1] ?? [];
  for (let at = values.length - 1; at >= 0; at -= 1) if (values[at] !== null && values[at] !== undefined) return at;
  return null;
}

/** A dashed line for each moment: restarts and revisions grey, decisions darker; what was only recorded dotted. */
function paintMarks(plot, marks, labels) {
  const { ctx, bbox } = plot, ratio = devicePixelRatio || 1;
  let free = -1; // labels that would lie on one another are left out
  ctx.save();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "left"; // axes are drawn before, with another
  ctx.textBaseline = "alphabetic";
  for (const mark of marks) {
    const x = Math.round(plot.valToPos(mark.at, "x", true)) + 0.5;
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = colour(mark.kind === "decision" ? "--ink-2" : "--ink-3");
    ctx.setLineDash(mark.mode === "shadow" ? [1, 3] : [4, 3]);
    ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
    if (!labels || !mark.label) continue;
    const width = ctx.measureText(mark.label).width, right = x + 4 * ratio, left = right + width > bbox.left + bbox.width ? x - 4 * ratio - width : right;
    if (left < free) continue;
    ctx.fillStyle = colour("--ink-3");
    ctx.fillText(mark.label, left, bbox.top - 6 * ratio);
    free = left + width + 8 * ratio;
  }
  ctx.restore();
}

function paintBands(plot, bands) {
  const { ctx, bbox } = plot;
  ctx.save();
  for (const [from, to, name] of bands) {
    const left = Math.max(bbox.left, plot.valToPos(from, "x", true)), right = Math.min(bbox.left + bbox.width, plot.valToPos(to, "x", true));
    if (!(right > left)) continue;
    ctx.globalAlpha = 0.16;
    ctx.fillStyle = colour(name);
    ctx.fillRect(left, bbox.top, right - left, bbox.height);
  }
  ctx.restore();
}
