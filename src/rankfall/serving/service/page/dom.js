// Helpers for elements and numbers. Data becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element; children that are null are left out, strings become text nodes. */
export function el(name, attributes = {}, ...children) {
  return withContent(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return withContent(document.createElementNS(SVG, name), attributes, children);
}

function withContent(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(key, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Format 1684 as "1,684". */
export const whole = (value) => value.toLocaleString("en-US");

/** Format a score with enough digits to distinguish neighbouring scores. */
export function number(value) {
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 5e-5)) return value.toExponential(2);
  return value.toFixed(size >= 100 ? 2 : 4);
}

export function milliseconds(value) {
  return `${value < 10 ? value.toFixed(1) : whole(Math.round(value))} ms`;
}

export function percent(part, all) {
  const share = all ? (100 * part) / all : 0;
  return `${share && share < 0.1 ? "< 0.1" : share.toFixed(share < 10 ? 1 : 0)} %`;
}

/** Return the key of an item; within a bundle all ids are numbers, or all are text. */
export const keyOf = (id) => String(id);

export const plural = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;
