// What happened to an item and why: one verdict per stage.

import { el, keyOf, number, whole } from "./dom.js";

const SAME = 1e-6; // scores that differ by less, relative to the larger of 1 and the score, count as equal

/**
 * Return the verdict of every stage on an item.
 * `run` is a ranked request: {answer, about, request}; `scores` are the scores of the item by stage.
 */
export function verdicts(id, run, scores) {
  const { answer, about } = run;
  if (answer.stages.every((stage) => scores[stage.name] === null)) {
    return [{ name: null, state: "unknown", text: "This bundle has no such item." }];
  }
  const found = [];
  let dropped = null; // the verdict of the stage that did not keep the item
  answer.stages.forEach((stage, place) => {
    const seen = {
      id, stage, score: scores[stage.name], at: placeIn(stage, id), quota: about.stages[place].quota,
      last: place === answer.stages.length - 1,
    };
    const verdict = dropped === null ? judged(seen, run, about.stages[place]) : notReceived(seen, dropped);
    const one = { name: stage.name, score: seen.score, threshold: stage.threshold, stage, ...verdict };
    if (dropped === null && verdict.state !== "kept") dropped = one;
    found.push(one);
  });
  return found;
}

function judged(seen, run, about) {
  if (seen.at >= 0) return seen.at < seen.stage.kept ? kept(seen, run) : below(seen);
  return notListed(seen, run, about);
}

function kept({ stage, score, at, last }, { answer }) {
  const rank = `Kept, rank ${whole(at + 1)} of ${whole(stage.ids.length)}`;
  if (last && at >= answer.ids.length) {
    return { state: "cut", text: `${rank}, but not returned: the request asked for ${answer.ids.length} items.` };
  }
  const over = near(score, stage) ? "equal to the threshold" : `${gap(score, stage)} above ${limit(stage)}`;
  return { state: "kept", text: `${rank}: score ${number(score)}, ${over}.` };
}

function below({ stage, score, at }) {
  const rank = `rank ${whole(at + 1)} of ${whole(stage.ids.length)}, ${whole(stage.kept)} are kept`;
  const why = near(score, stage)
    ? `Score ${number(score)} equals the threshold, and only the first of equal scores are kept`
    : against(score, stage);
  return { state: "dropped", text: `${why}: dropped here, ${rank}.` };
}

/** The first stage lists only kept items: the request left the item out, its score is too low, or the index missed it. */
function notListed({ id, stage, score }, { request }, about) {
  if (has(request.exclude, id)) return leftOut("the request excludes it");
  if (Array.isArray(request.candidates)) return leftOut("it is not a candidate of the request");
  if (near(score, stage)) {
    const why = `Score ${number(score)} equals the threshold, but the quota was filled by other items`;
    return { state: "dropped", text: `${why}: dropped here.` };
  }
  if (score < stage.threshold) return { state: "dropped", text: `${against(score, stage)}: dropped here.` };
  const index = `approximate index, recall ${about.index?.recall.toFixed(3)}`;
  const text = `${against(score, stage)}, but the index did not find it (${index}): dropped here.`;
  return { state: "missed", text };
}

const leftOut = (why) => ({ state: "out", why, text: `${why[0].toUpperCase()}${why.slice(1)}.` });

function notReceived(seen, dropped) {
  const { stage, score, quota } = seen;
  if (dropped.state === "out") return notRequested(seen, dropped.why);
  const before = `Not received, because ${dropped.name} dropped it. Its score here, ${number(score)},`;
  const better = stage.scores.filter((other) => other > score).length;
  if (stage.kept < quota) {
    return { state: "never", would: true, text: `${before} would have been enough: the quota was not reached.` };
  }
  if (better < stage.kept) {
    const text = `${before} is above ${limit(stage)}: it would have been kept at rank ${whole(better + 1)}.`;
    return { state: "never", would: true, text };
  }
  const text = `${before} is ${gap(score, stage)} below ${limit(stage)}: it would have been dropped.`;
  return { state: "never", text };
}

/** The request left the item out, so that no stage has dropped it: report only its score. */
function notRequested({ stage, score }, why) {
  const compared = stage.threshold === null ? `Score ${number(score)}` : against(score, stage);
  return { state: "never", text: `Not received, because ${why}. ${compared}.` };
}

function against(score, stage) {
  const side = score < stage.threshold ? "below" : "above";
  return `Score ${number(score)} is ${gap(score, stage)} ${side} ${limit(stage)}`;
}

const limit = (stage) => `the threshold ${number(stage.threshold)}`;
const gap = (score, stage) => number(Math.abs(score - stage.threshold));
const near = (score, stage) => Math.abs(score - stage.threshold) <= SAME * Math.max(1, Math.abs(score));
const has = (ids, id) => Array.isArray(ids) && ids.some((one) => keyOf(one) === keyOf(id));

function placeIn(stage, id) {
  const key = keyOf(id);
  return stage.ids.findIndex((one) => keyOf(one) === key);
}

// --- the view --------------------------------------------------------------------------------------------------------

const MARKS = { kept: "✓", dropped: "✕", missed: "✕", out: "✕", cut: "✓", never: "–", unknown: "?" };

/** Create a list with one step per stage: its decision, with the margin, in a sentence. */
export function pathView(id, found, title, about = "") {
  const outcome = outcomeOf(found);
  const before = title ? `${title}: item ` : "Item ";
  return el("section", { class: `path ${outcome.kind}`, "aria-label": before + keyOf(id) },
    el("h3", {}, el("span", { class: "soft" }, before), el("span", { class: "id" }, keyOf(id)),
      el("span", { class: `badge ${outcome.kind}` }, outcome.text)),
    about ? el("p", { class: "soft small" }, about) : null,
    el("ol", { class: "steps" }, found.map(step)));
}

export function outcomeOf(found) {
  const end = found.find((one) => one.state !== "kept");
  if (!end) return { kind: "good", text: "in the results" };
  if (end.state === "unknown") return { kind: "none", text: "not an item of this bundle" };
  if (end.state === "out") return { kind: "none", text: "left out by the request" };
  if (end.state === "cut") return { kind: "none", text: "kept, not returned" };
  return { kind: "bad", text: `dropped by ${end.name}` };
}

function step(verdict) {
  const { name, state, would, text } = verdict;
  return el("li", { class: `step ${state}`, "data-stage": name, "data-state": state },
    el("span", { class: "mark", "aria-hidden": "true" }, MARKS[state]),
    el("div", {},
      name === null ? null : el("p", { class: "where" }, el("strong", {}, name),
        would ? el("span", { class: "badge warn" }, "would have been kept") : null),
      el("p", {}, text),
      name === null || verdict.threshold === null || state === "out" ? null : gauge(verdict)));
}

/** Draw the score and the threshold on the range of scores of a stage. */
function gauge({ score, threshold, stage }) {
  const low = Math.min(score, stage.scores.at(-1)), high = Math.max(score, stage.scores[0]);
  const room = 0.06 * (high - low) || 1;
  const place = (value) => `${(100 * (value - low + room)) / (high - low + 2 * room)}%`;
  const line = el("div", { class: `gauge ${score < threshold ? "below" : "above"}`, "aria-hidden": "true" });
  const span = el("i", { class: "span" }), tick = el("i", { class: "tick" }), dot = el("i", { class: "dot" });
  const from = Math.min(score, threshold), to = Math.max(score, threshold);
  span.style.left = place(from);
  span.style.right = `calc(100% - ${place(to)})`;
  tick.style.left = place(threshold);
  dot.style.left = place(score);
  line.append(span, tick, dot);
  return el("div", { class: "gauge-box", title: `from ${number(low)} to ${number(high)}` }, line,
    el("span", { class: "soft small" }, `threshold ${number(threshold)}`));
}
