// Lag by client over time: a row a client, worst first; runs of cells as boxes that share the row's width.
import { make, named } from "./dom.js";
import { duration } from "./format.js";
import { chip } from "./states.js";
import { dayAndTime, dayWords } from "./zone.js";

const wide = matchMedia("(min-width: 45.01rem)"), FULL = 20, TALL = 400;
const TICKS = 6, LABEL = 110; // pixels that a mark's words take

/** Draw what the server says: {from, to, cells, rows: [{name, health, lag_ms, runs: [[cells, level, on disk]]}], marks}. */
export function drawHeat(root, found) {
  // Few rows are higher: the map is as tall as it is with all of them.
  root.style.setProperty("--heat-row", wide.matches && found.rows.length < FULL ? `${Math.min(28, Math.floor(TALL / found.rows.length))}px` : "");
  const parts = [marksRow(found, (1000 * LABEL) / Math.max(200, root.clientWidth / 2))];
  for (const row of found.rows) parts.push(heatRow(row));
  parts.push(axis(found));
  root.replaceChildren(...parts);
}

function heatRow(row) {
  const picture = make("span", { class: "runs", "aria-hidden": "true" });
  for (const [length, level, disk] of row.runs) {
    const run = make("i", { class: level < 0 ? null : `cell-${level}${disk ? " on-disk" : ""}` });
    run.style.flexGrow = length;
    picture.append(run);
  }
  const needsAttention = ["stalled", "falling behind", "flapping", "not recorded"].includes(row.health);
  return make("a", { class: `heat-row${needsAttention ? " asks" : ""}`, href: `/clients/${encodeURIComponent(row.name)}/`, "data-row-link": "" },
    make("span", { class: "cut" }, named(row.name)), picture, make("span", { class: "num" }, row.lag_ms ? duration(row.lag_ms) : "0"), make("span", {}, chip(row.health, "health")));
}

/** Restarts and revisions, through all rows; two that would lie on each other share a label. */
function marksRow({ from, to, marks, rows }, apart) {
  const holder = make("span", { class: "heat-marks", "aria-hidden": "true" });
  let last = -1000;
  for (const mark of marks) {
    const x = (1000 * (mark.at - from)) / (to - from);
    const line = make("i", { class: "heat-line" });
    line.style.left = `${x / 10}%`;
    line.style.height = `calc(8px + ${rows.length} * var(--heat-row))`;
    holder.append(line);
    if (x - last < apart) continue;
    const label = make("span", { class: "heat-mark" }, `${mark.label} ${dayAndTime(1000 * mark.at).time.slice(0, 5)}`);
    label.style.left = `${x / 10}%`;
    holder.append(label);
    last = x;
  }
  return holder;
}

function axis({ from, to }) {
  const step = (to - from) / TICKS;
  return make("span", { class: "heat-axis", "aria-hidden": "true" }, ...Array.from({ length: TICKS + 1 }, (_, index) => {
    const ms = 1000 * (from + index * step), day = to - from > 86_400;
    return make("span", { class: index % 2 ? "no-s" : index % TICKS ? "no-phone" : "" }, day ? dayWords(dayAndTime(ms).day) : dayAndTime(ms).time.slice(0, 5));
  }));
}

export async function fetchHeat(root) {
  const answer = await fetch(root.dataset.url, { headers: { Accept: "application/json" } });
  return answer.ok ? answer.json() : null;
}

