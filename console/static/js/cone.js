// What was, the limit, and the cone of the forecast, in the small: one SVG without axes. Attributes only, so the strict CSP holds.
import { setAttribute, svg } from "./dom.js";

const WIDTH = 240, HEIGHT = 40, HEADROOM = 1.12; // factor above the limit, so that values over it are visible

export function cone() {
  const parts = {
    area: svg("polygon", { class: "spark-area" }), wide: svg("polygon", { class: "cone-wide" }), line: svg("polyline", { class: "spark-line" }),
    middle: svg("polyline", { class: "cone-line" }), limit: svg("line", { class: "cone-limit", x1: 0, x2: WIDTH }),
  };
  const root = svg("svg", { class: "cone", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": "no samples yet" }, ...Object.values(parts));
  return { root, draw: (points, limit, ahead, label) => draw(root, parts, points, limit, ahead, label) };
}

/** points: [[seconds, value]]; ahead: what forecast() says of them, null where it says nothing. Amber is for what may come to its limit. */
function draw(root, parts, points, limit, ahead, label) {
  setAttribute(root, "aria-label", label);
  root.classList.toggle("near", ahead !== null && ahead.soonest !== null);
  const [from, to] = [points[0]?.[0] ?? 0, ahead?.points.at(-1)[0] ?? points.at(-1)?.[0] ?? 1], top = Math.max(1, limit, ...points.map((point) => point[1])) * HEADROOM;
  const at = (seconds, value) => `${(((seconds - from) / Math.max(1, to - from)) * WIDTH).toFixed(1)},${(HEIGHT - (Math.min(value, 2 * top) / top) * HEIGHT).toFixed(1)}`;
  const was = points.map(([seconds, value]) => at(seconds, value)), cone = ahead?.points ?? [];
  parts.line.setAttribute("points", was.join(" "));
  parts.area.setAttribute("points", was.length ? [at(from, 0), ...was, at(points.at(-1)[0], 0)].join(" ") : "");
  parts.middle.setAttribute("points", cone.map((one) => at(one[0], one[1])).join(" "));
  parts.wide.setAttribute("points", [...cone.map((one) => at(one[0], one[2])), ...cone.toReversed().map((one) => at(one[0], one[3]))].join(" "));
  const height = (HEIGHT - (limit / top) * HEIGHT).toFixed(1);
  for (const end of ["y1", "y2"]) parts.limit.setAttribute(end, height);
  parts.limit.classList.toggle("none", !limit);
}
