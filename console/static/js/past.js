// The picker of a moment: it is filled and read by the chosen clock, and sent as UTC. Without a script it is UTC itself.
import { all, one, setText } from "./dom.js";
import { dayAndTime, zoneWord } from "./zone.js";

const local = (ms) => { const at = dayAndTime(ms); return `${at.day}T${at.time}`; };

/** The moment that a clock of that zone showed so: as if it were UTC, less what the zone is ahead then. */
function momentOf(text) {
  const localMs = Date.parse(`${text.length === 16 ? `${text}:00` : text}Z`);
  let found = localMs;
  for (let pass = 0; pass < 2; pass += 1) found = localMs - (Date.parse(`${local(found)}Z`) - found);
  return found;
}

export function picker() {
  for (const form of all("form[data-at]")) {
    const field = one("[name=at]", form);
    const show = () => {
      const ms = Number(field.dataset.ms ?? Math.floor(Date.now() / 1000) * 1000);
      field.value = local(ms);
      setText(one("[data-at-zone]", form), zoneWord(ms));
    };
    field.addEventListener("change", () => { const ms = momentOf(field.value); if (!Number.isNaN(ms)) field.dataset.ms = String(ms); });
    form.closest("details").addEventListener("toggle", show);
    document.addEventListener("sluice:zone", show);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const address = new URL(location.href), ms = momentOf(field.value);
      if (Number.isNaN(ms)) return;
      address.searchParams.set("at", new Date(ms).toISOString().replace(/\.\d+Z/, "Z"));
      address.searchParams.delete("page");
      location.href = address;
    });
    show();
  }
}
