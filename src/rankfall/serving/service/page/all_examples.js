// Comparison of two bundles over all examples: what they share, and what each keeps of the relevant items.

import { call } from "./api.js";
import { Reactions } from "./attributes.js";
import { overlap } from "./compare.js";
import { el, plural, whole } from "./dom.js";
import { labelOf } from "./form.js";

const AT_ONCE = 16; // requests of a call
const DEADLINE = 30_000; // ms, since a call has many requests

const keptOf = (trace) => trace.ids.slice(0, trace.kept);
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
const share = (value) => (value === null ? "unknown" : `${(100 * value).toFixed(1)}\u00a0%`);

/** Rank all examples with both bundles; return {examples, models}. */
export async function rankAll(requests, known, signal) {
  const [ours, theirs] = await Promise.all(["main", "other"].map((bundle) => rankings(bundle, requests, signal)));
  return {
    models: [ours.model, theirs.model],
    examples: requests.map((request, place) => {
      const reactions = new Reactions(known[place]);
      return { place, request, reactions, both: [ours.rankings[place], theirs.rankings[place]] };
    }),
  };
}

async function rankings(bundle, requests, signal) {
  const found = { model: null, rankings: [] };
  for (let start = 0; start < requests.length; start += AT_ONCE) {
    const body = { requests: requests.slice(start, start + AT_ONCE), explain: true, bundle, deadline: DEADLINE };
    const answer = await call("rank", body, signal);
    found.model = answer.model;
    found.rankings.push(...answer.rankings);
  }
  return found;
}

/** Show the comparison; `onExample` receives the number of an example to show alone. */
export function allExamples({ examples }, onExample) {
  const judged = examples.filter(({ reactions }) => reactions.relevant.size > 0);
  const shared = examples.map(({ both: [one, other] }) => sharedOf(one.ids, other.ids));
  const recalls = [0, 1].map((side) => mean(judged.map((example) => recall(example, side, example.both[side].ids))));
  const onJudged = judged.length === examples.length ? "" : ` (${whole(judged.length)} examples)`;
  return el("section", { class: "all-examples", "aria-label": "All examples" },
    el("h2", {}, `All ${plural(examples.length, "example")}`),
    el("div", { class: "figures" },
      figure(share(mean(shared)), "mean share of results in both"),
      judged.length ? figure(share(recalls[0]), `main: relevant items in the results${onJudged}`) : null,
      judged.length ? figure(share(recalls[1]), `other: relevant items in the results${onJudged}`) : null),
    stagesTable(examples, judged),
    judged.length ? null : el("p", { class: "soft small" }, "The examples of this bundle have no relevant items."),
    el("details", { open: examples.length <= AT_ONCE }, el("summary", {}, "Each example"), examplesTable(examples, onExample)));
}

const figure = (value, words) => el("div", {}, el("strong", {}, value), el("span", { class: "soft small" }, words));

/** Return the share of the shorter list that both lists hold. */
function sharedOf(one, other) {
  const least = Math.min(one.length, other.length);
  return least ? overlap(one, other).shared / least : 0;
}

function recall({ reactions }, side, ids) {
  return reactions.among(ids) / reactions.relevant.size;
}

function stagesTable(examples, judged) {
  const [ours, theirs] = examples[0].both.map((ranking) => ranking.stages);
  const count = Math.max(ours.length, theirs.length);
  const rows = Array.from({ length: count }, (_, place) => {
    const [mine, yours] = [ours[place], theirs[place]];
    const name = mine && yours && mine.name !== yours.name ? `${mine.name} | ${yours.name}` : (mine ?? yours).name;
    const both = mine && yours
      ? share(mean(examples.map(({ both: [one, other] }) => sharedOf(keptOf(one.stages[place]), keptOf(other.stages[place])))))
      : "none";
    const left = [mine, yours].map((stage, side) => (stage
      ? share(mean(judged.map((example) => recall(example, side, keptOf(example.both[side].stages[place])))))
      : "none"));
    return el("tr", {}, el("th", { scope: "row" }, name), [both, ...left].map((cell) => el("td", {}, cell)));
  });
  const heads = ["stage", "mean overlap", "main: relevant items left", "other: relevant items left"];
  return scroll(heads, rows);
}

function examplesTable(examples, onExample) {
  const rows = examples.map((example) => {
    const [one, other] = example.both;
    const least = Math.min(one.ids.length, other.ids.length);
    const known = example.reactions.relevant.size;
    const [ours, theirs] = example.both.map((ranking) => example.reactions.among(ranking.ids));
    const button = el("button", { type: "button", class: "link" }, labelOf(example.request));
    button.addEventListener("click", () => onExample(example.place));
    const better = ours === theirs ? "same" : ours > theirs ? "main" : "other";
    const cells = [`${overlap(one.ids, other.ids).shared} of ${least}`, ...(known
      ? [`${ours} of ${known}`, `${theirs} of ${known}`, better] : ["unknown", "unknown", ""])];
    return el("tr", { "data-example": example.place }, el("th", { scope: "row" }, button),
      cells.map((cell) => el("td", {}, cell)));
  });
  const heads = ["example", "shared results", "main: relevant", "other: relevant", "more relevant"];
  return scroll(heads, rows);
}

function scroll(heads, rows) {
  return el("div", { class: "scroll", tabindex: "0" }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, rows)));
}
