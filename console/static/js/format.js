// Numbers as an operator reads them. The same rules as console/units/format.py, which writes them on the server.

import { dayAndTime, dayWords, zoneWord } from "./zone.js";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
export const NONE = "–";

/** 1536 → "1.5 KiB". Powers of two, as the settings take them. */
export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  let amount = Number(value), unit = 0;
  while (Math.abs(amount) >= 1024 && unit < UNITS.length - 1) { amount /= 1024; unit += 1; }
  return `${unit === 0 ? Math.round(amount) : digits(amount)} ${UNITS[unit]}`;
}

/** 12345 → "12,345"; above a million "1.23 M". */
export function count(value) {
  if (value === null || value === undefined) return NONE;
  const amount = Number(value);
  if (Math.abs(amount) >= 1e9) return `${digits(amount / 1e9)} G`;
  if (Math.abs(amount) >= 1e6) return `${digits(amount / 1e6)} M`;
  return Math.round(amount).toLocaleString("en-GB");
}

/** A rate: small ones keep a decimal. */
export function rate(value) {
  if (value === null || value === undefined) return NONE;
  const amount = Number(value);
  return amount > 0 && amount < 10 ? amount.toFixed(1) : count(amount);
}

/** Milliseconds → "850 ms", "12.4 s", "3 min 05 s", "2 h 14 min", "3 d 4 h". */
export function duration(ms) {
  if (ms === null || ms === undefined) return NONE;
  const value = Math.max(0, Number(ms));
  if (value < 1000) return `${Math.round(value)} ms`;
  if (value < 60_000) return `${(value / 1000).toFixed(1)} s`;
  const seconds = Math.floor(value / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, "0")} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${String(Math.floor(seconds / 60) % 60).padStart(2, "0")} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor(seconds / 3600) % 24} h`;
}

/** The same where tenths of a millisecond matter: how long a message took. */
export const delay = (ms) => (ms !== null && ms !== undefined && ms < 10 ? `${Number(ms).toFixed(1)} ms` : duration(ms));

export function percent(value) {
  return value === null || value === undefined ? NONE : `${Number(value).toFixed(value < 10 && value > 0 ? 1 : 0)} %`;
}

/** Clock time of an epoch in milliseconds, by the chosen zone; the date too when it isn't today there. */
export function clock(ms) {
  if (ms === null || ms === undefined) return NONE;
  const at = dayAndTime(Number(ms));
  return at.day === dayAndTime(Date.now()).day ? at.time : `${dayWords(at.day)} ${at.time}`;
}

/** The same without seconds: on axes, and in a headline. */
export const minute = (ms) => clock(ms).slice(0, -3);

/** The same with its zone: where a moment stands in a sentence. */
export const moment = (ms) => (ms === null || ms === undefined ? NONE : `${clock(ms)} ${zoneWord(ms)}`);

/** "12 s ago"; coarse on purpose, the exact time stands in the title. */
export function ago(ms, now = Date.now()) {
  const seconds = Math.max(0, Math.round((now - ms) / 1000));
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}

/** A broker's sentence with durations and pools as people call them: "nothing for 885730 ms" is "nothing for 14 min 45 s", "pool transport:tcp" is "pool tcp". */
export const inWords = (sentence) => String(sentence ?? "").replaceAll("pool transport:", "pool ").replaceAll("of pool instance ", "of the shared pool ").replace(/(?<![\w|.])(\d[\d,]*(?:\.\d+)?) (ms|s)\b/g, (_, amount, unit) => duration(Number(amount.replaceAll(",", "")) * (unit === "ms" ? 1 : 1000)));

/** A value with the unit a decision or signal names. */
export function withUnit(value, unit) {
  if (unit === "bytes") return bytes(value);
  if (unit === "ms") return duration(value);
  if (unit === "bytes/s") return `${bytes(value)}/s`;
  if (unit === "percent" || unit === "%") return percent(value);
  return unit ? `${count(value)} ${unit}` : count(value);
}

function digits(amount) {
  const size = Math.abs(amount);
  return amount.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0);
}
