// Small helpers over the DOM. Text is always set as text, never as HTML: client names and topics come from outside.

export const one = (selector, root = document) => root.querySelector(selector);
export const all = (selector, root = document) => [...root.querySelectorAll(selector)];

/** Make an element: make("td", {class: "num", title: "…"}, "text", child, …). */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** An icon of the sprite; decoration, since its word always stands beside it. */
export function icon(name) {
  const sprite = document.body.dataset.icons;
  return svg("svg", { class: "glyph", "aria-hidden": "true", focusable: "false" }, svg("use", { href: `${sprite}#${name}` }));
}

/** Set text only when it differs, so that a selection in it and the screen reader are left alone. */
export function setText(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (element && element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** The JSON of a `json_script` element. */
export function data(id, fallback = null) {
  const element = document.getElementById(id);
  return element ? JSON.parse(element.textContent) : fallback;
}

export const typing = (target) => Boolean(target?.closest?.("input, textarea, select, [contenteditable], dialog"));

const NAME_TAIL = 6;
export const UNCUT = 3 * NAME_TAIL;

/** A name from outside: isolated from the direction around it, and cut in its middle where it is too long (as templatetags/page_frame.py). */
export function named(text) {
  const name = String(text);
  if (name.length <= UNCUT) return make("bdi", {}, name);
  return make("bdi", { class: "mid", title: name }, make("span", {}, name.slice(0, -NAME_TAIL)), make("span", {}, name.slice(-NAME_TAIL)));
}

let probe = null;

/** A token as a colour that a canvas takes: a custom property's own text may be light-dark(). */
export function colour(token) {
  if (!probe?.isConnected) document.body.append(probe = make("i", { hidden: true }));
  probe.style.color = `var(${token})`;
  return getComputedStyle(probe).color;
}
