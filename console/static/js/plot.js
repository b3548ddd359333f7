// uPlot with the console's colours. Every plot redraws its colours when the theme changes and its width when the page does.
import uPlot from "../vendor/uplot-1.6.32/uPlot.esm.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function axis(label, format, side) {
  return {
    scale: label, side, size: 68, font: "12px system-ui, sans-serif",
    stroke: () => colour("--s-muted"), grid: { show: side === 3, stroke: () => colour("--s-grid"), width: 1 },
    ticks: { show: false }, values: (plot, values) => values.map((value) => format(value)),
  };
}

/**
 * A plot over time. series: [{label, colour: "--s-in", scale, format}], one or two scales; the second stands on the right.
 * bands(): [[fromSeconds, toSeconds, colourName]] paints spans behind the lines, such as the time offlined.
 */
export function timePlot(element, series, { height = 240, bands = () => [] } = {}) {
  const scales = [...new Set(series.map((one) => one.scale))];
  const options = {
    width: Math.max(200, element.clientWidth), height, padding: [10, 8, 0, 0],
    cursor: { points: { size: 6 }, drag: { x: true, y: false } }, legend: { live: true },
    scales: { x: { time: true }, ...Object.fromEntries(scales.map((name) => [name, { range: (plot, low, high) => [0, high > 0 ? high * 1.12 : 1] }])) },
    axes: [
      { stroke: () => colour("--s-muted"), grid: { show: false }, ticks: { stroke: () => colour("--s-line"), size: 4 }, font: "12px system-ui, sans-serif", space: 70,
        values: [[86400, "{YYYY}-{MM}-{DD}", null, null, null, null, null, null, 1], [3600, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", null, null, null, null, null, 1], [60, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
      ...scales.map((name, index) => axis(name, series.find((one) => one.scale === name).format, index === 0 ? 3 : 1)),
    ],
    series: [
      { label: "Time", value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" },
      ...series.map((one, index) => ({
        label: one.label, scale: one.scale, width: 1.75, stroke: () => colour(one.colour), dash: index % 2 ? [6, 3] : undefined,
        fill: index === 0 ? () => `color-mix(in srgb, ${colour(one.colour)} 12%, transparent)` : undefined,
        points: { show: false }, value: (plot, value) => (value === null || value === undefined ? "–" : one.format(value)),
      })),
    ],
    hooks: { drawClear: [(plot) => paintBands(plot, bands())] },
  };
  const plot = new uPlot(options, [[], ...series.map(() => [])], element);
  new ResizeObserver(() => plot.setSize({ width: Math.max(200, element.clientWidth), height })).observe(element);
  document.addEventListener("sluice:theme", () => plot.redraw(false, true));
  return plot;
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
