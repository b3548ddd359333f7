// A sparkline as one SVG polyline. Attributes only, so the strict CSP holds; colour is currentColor of its row's state.
import { svg } from "./dom.js";

const WIDTH = 96, HEIGHT = 22, PAD = 2;

export function sparkline() {
  const area = svg("polygon", { class: "spark-area", points: "" });
  const line = svg("polyline", { class: "spark-line", points: "" });
  const root = svg("svg", {
    class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img",
    preserveAspectRatio: "none", "aria-label": "no samples yet",
  }, area, line);
  return { root, draw: (values, label) => draw(root, area, line, values, label) };
}

function draw(root, area, line, values, label) {
  if (values.length < 2) return;
  const top = Math.max(1, ...values);
  const step = WIDTH / (values.length - 1);
  const points = values.map((value, index) =>
    `${(index * step).toFixed(1)},${(HEIGHT - PAD - (value / top) * (HEIGHT - 2 * PAD)).toFixed(1)}`);
  line.setAttribute("points", points.join(" "));
  area.setAttribute("points", `0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`);
  root.setAttribute("aria-label", label);
}

/** Rising, falling or steady over the samples: the slope's sign with a floor, as a word for those who can't see the line. */
export function trend(values) {
  if (values.length < 6) return "steady";
  const third = Math.floor(values.length / 3);
  const mean = (part) => part.reduce((sum, value) => sum + value, 0) / part.length;
  const before = mean(values.slice(0, third)), after = mean(values.slice(-third));
  if (Math.abs(after - before) <= Math.max(1, before * 0.05)) return "steady";
  return after > before ? "rising" : "falling";
}
