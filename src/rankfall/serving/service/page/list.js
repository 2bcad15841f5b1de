// The items that a stage scored: rank, change of rank and score of each, and the threshold.

import { el, keyOf, number, plural, whole } from "./dom.js";

const FIRST = 50; // rows shown initially
const AROUND = 10; // rows shown on both sides of the threshold
const MORE = 1000; // rows added at a time; more would be slow

export class ItemList {
  /**
   * `before` maps items to their ranks in the previous stage, `answered` is the number of returned items (last stage
   * only), `marked` returns the label of an item, `unlisted` is the number of items searched but not listed.
   * `attributes` are those of the items, and `reactions` is what the log knows about them.
   */
  constructor(trace, {
    name, unlisted, before = null, answered = null, marked = null, attributes = null, reactions = null,
  }) {
    this.trace = trace;
    this.options = { unlisted, before, answered, marked, attributes, reactions };
    this.chosen = null;
    this.shown = merged(this.within([[0, FIRST], [trace.kept - AROUND, trace.kept + AROUND]]));
    const kinds = ["items", before ? "moving" : "", typeof trace.ids[0] === "string" ? "texts" : ""];
    this.element = el("ol", {
      class: kinds.join(" "), role: "listbox", "aria-label": `${name}: ${plural(trace.ids.length, "item")}`,
    });
    this.more = el("button", { type: "button", class: "more" });
    this.more.addEventListener("click", () => this.showMore());
    this.fill();
  }

  get rows() {
    return this.element.querySelectorAll("[role=option]");
  }

  within(ranges) {
    const count = this.trace.ids.length;
    return ranges.map(([from, to]) => [Math.max(0, from), Math.min(count, to)]).filter(([from, to]) => from < to);
  }

  fill() {
    const count = this.trace.ids.length;
    const hidden = count - this.shown.reduce((sum, [from, to]) => sum + to - from, 0);
    this.element.replaceChildren(heads(this.options), ...lines(this.trace, this.shown, this.options));
    this.element.classList.toggle("long", count - hidden > 4 * FIRST);
    this.rows[0]?.setAttribute("tabindex", "0");
    this.select();
    this.more.hidden = hidden === 0;
    const some = `Show ${whole(MORE)} more of ${whole(hidden)}`;
    this.more.textContent = hidden <= MORE ? `Show all ${whole(count)}` : some;
  }

  showMore() {
    const [[, next]] = this.shown; // the first new row
    this.shown = merged([...this.shown, ...this.within([[0, next + MORE]])]);
    this.fill();
    moveTo(this.rows[next]);
  }

  /** Select an item, and show it if it was hidden. */
  choose(key) {
    this.chosen = key;
    const at = this.trace.ids.findIndex((id) => keyOf(id) === key);
    if (at >= 0 && !this.shown.some(([from, to]) => from <= at && at < to)) {
      this.shown = merged([...this.shown, ...this.within([[at - 2, at + 3]])]);
      this.fill();
    } else this.select();
    this.reveal();
  }

  /** Scroll the list, not the page, to the selected item, or to the threshold if the item is not listed. */
  reveal() {
    const target = this.element.querySelector("[aria-selected=true]") ?? this.element.querySelector(".threshold");
    if (!target) return;
    const [list, row] = [this.element, target].map((one) => one.getBoundingClientRect());
    const under = row.top - list.top, head = this.element.firstChild.offsetHeight;
    if (under >= head && row.bottom <= list.bottom) return;
    this.element.scrollTop += under - (list.height - row.height) / 2;
  }

  select() {
    for (const row of this.rows) row.setAttribute("aria-selected", String(row.dataset.key === this.chosen));
  }
}

/** Focus an item of a list; Tab then returns to it. */
export function moveTo(item) {
  for (const one of item.parentElement.querySelectorAll("[tabindex='0']")) one.setAttribute("tabindex", "-1");
  item.setAttribute("tabindex", "0");
  item.focus();
}

/** Sort ranges and merge those that touch or are one row apart, for which a note would take as much space. */
function merged(wanted) {
  const found = [];
  for (const [from, to] of [...wanted].sort((one, other) => one[0] - other[0])) {
    const last = found.at(-1);
    if (last && from <= last[1] + 1) last[1] = Math.max(last[1], to);
    else found.push([from, to]);
  }
  return found;
}

function lines(trace, shown, options) {
  const { answered, unlisted } = options;
  const scale = scaleOf(trace);
  const found = [];
  let end = 0;
  for (const [from, to] of shown) {
    if (from > end) found.push(note(`${plural(from - end, "item")} not shown`, "gap"));
    for (let place = from; place < to; place++) {
      if (place === answered && answered < trace.kept) {
        found.push(note(`returned: the first ${whole(answered)}`, "asked"));
      }
      if (place === trace.kept) found.push(note(`threshold ${number(trace.threshold)}, dropped below`, "threshold"));
      found.push(row(trace, place, scale, options));
    }
    end = to;
  }
  if (end < trace.ids.length) found.push(note(`${plural(trace.ids.length - end, "item")} not shown`, "gap"));
  if (unlisted > 0 && trace.kept) {
    found.push(note(`threshold ${number(trace.threshold)}`, "threshold"));
    found.push(note(`${plural(unlisted, "other item")} not listed; find one by its id`, "gap"));
  }
  return found;
}

/** The column headings; for screen readers they are part of every row. */
function heads({ before }) {
  const words = ["rank", "item", before ? "moved" : null, "", "score"].filter((word) => word !== null);
  return el("li", { class: "heads", role: "presentation", "aria-hidden": "true" },
    words.map((word) => el("span", {}, word)));
}

const note = (text, kind) => el("li", { class: kind, role: "presentation" }, el("span", {}, text));

function row(trace, place, scale, { before, marked, attributes, reactions }) {
  const key = keyOf(trace.ids[place]), score = number(trace.scores[place]), kept = place < trace.kept;
  const was = before?.get(key);
  const mark = marked?.(key, kept) ?? null;
  const text = attributes?.text(key) ?? "", values = attributes?.values(key) ?? "", reaction = reactions?.label(key) ?? null;
  const words = [`rank ${place + 1}`, `item ${key}`, text, `score ${score}`, kept ? "kept" : "dropped",
    before ? `previous rank ${was}` : null, mark, reaction === null ? null : `in the log: ${reaction}`];
  return el("li", {
    role: "option", tabindex: "-1", class: `item ${kept ? "kept" : "dropped"}`, "data-key": key,
    "aria-label": words.filter(Boolean).join(", "),
  },
  el("span", { class: "rank" }, whole(place + 1)),
  el("span", { class: "id", title: key }, key, mark ? el("span", { class: "only", title: mark }) : null),
  before ? movement(was, place + 1) : null,
  meter(trace.scores[place], scale),
  el("span", { class: "score" }, score),
  values || reaction ? aboutLine(values, reaction, reactions?.isRelevant(key), text) : null);
}

/** Create the line below an item: how the user received it, and its attributes. */
function aboutLine(values, reaction, isRelevant, text) {
  const mark = reaction === null ? null // the title has all feedback
    : el("span", { class: isRelevant ? "reaction" : "reaction other" }, isRelevant ? "★ relevant" : `☆ ${reaction}`);
  return el("span", { class: "about", title: [reaction, text].filter(Boolean).join(" · ") },
    mark, values ? el("span", { class: "values" }, values) : null);
}

function movement(was, now) {
  const by = was - now;
  const [kind, text] = by > 0 ? ["up", `▲ ${whole(by)}`] : by < 0 ? ["down", `▼ ${whole(-by)}`] : ["same", "="];
  return el("span", { class: `moved ${kind}`, title: `rank ${whole(was)} in the previous stage` }, text);
}

/** Return the scale from scores to per cent of the width, and the place of the threshold. */
function scaleOf(trace) {
  const low = trace.scores.at(-1), width = trace.scores[0] - low || 1;
  const at = (score) => (100 * (score - low)) / width;
  return { at, threshold: at(trace.threshold) };
}

/** Draw a bar from the threshold to the score: to the right if it is above, to the left if it is below. */
function meter(score, { at, threshold }) {
  const piece = el("i"), line = el("b");
  piece.style.left = `${Math.min(at(score), threshold)}%`;
  piece.style.width = `${Math.abs(at(score) - threshold)}%`;
  line.style.left = `${threshold}%`;
  return el("span", { class: "meter", "aria-hidden": "true" }, piece, line);
}

/** Rank by item, from 1. */
export const ranks = (ids) => new Map(ids.map((id, place) => [keyOf(id), place + 1]));
