// By which clock moments are told: the browser's, UTC, or the site's. One choice for pages and plots: the person's setting, or this browser's.
const KEY = "sluice.zone";
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const BROWSER = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const ZONES = { browser: BROWSER, utc: "UTC", site: document.body?.dataset.siteZone || "UTC" };

const ofPerson = document.documentElement.dataset.clockSaved in ZONES ? document.documentElement.dataset.clockSaved : "browser";

let chosen = read();
let parts = formatter(), shortNames = names();

function read() {
  try { const saved = localStorage.getItem(KEY); return saved in ZONES ? saved : ofPerson; } catch { return ofPerson; }
}
function formatter() {
  return new Intl.DateTimeFormat("en-GB", { timeZone: ZONES[chosen], hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" });
}
function names() { return new Intl.DateTimeFormat("en-GB", { timeZone: ZONES[chosen], timeZoneName: "short" }); }

export const zone = () => ZONES[chosen];
export const choice = () => chosen;

/** City of a zone, short enough for a telephone: "Los Angeles". */
const city = (name) => name.slice(name.lastIndexOf("/") + 1).replaceAll("_", " ");

/** What may be chosen: [key, words]. */
export const choices = () => [["browser", `${city(BROWSER)} (browser)`], ["utc", "UTC"], ["site", `${city(ZONES.site)} (site)`]];

export function choose(key) {
  chosen = key in ZONES ? key : "browser";
  try { localStorage.setItem(KEY, chosen); } catch { /* private mode: the choice lasts this page */ }
  parts = formatter(); shortNames = names();
  document.dispatchEvent(new Event("sluice:zone"));
}

/** The zone's short name at a moment: "UTC", "CET", "GMT+5:30". */
export const zoneWord = (ms) => shortNames.formatToParts(new Date(ms)).find((part) => part.type === "timeZoneName")?.value ?? ZONES[chosen];

/** A day as people write it: "22 Nov", with its year when that isn't this one. */
export function dayWords(day) {
  const [year, month, number] = day.split("-");
  const text = `${Number(number)} ${MONTHS[month - 1]}`;
  return year === dayAndTime(Date.now()).day.slice(0, 4) ? text : `${text} ${year}`;
}

/** A moment's day and time by the chosen clock. */
export function dayAndTime(ms) {
  const found = Object.fromEntries(parts.formatToParts(new Date(ms)).map((part) => [part.type, part.value]));
  return { day: `${found.year}-${found.month}-${found.day}`, time: `${found.hour}:${found.minute}:${found.second}` };
}
