// Comparison of two bundles on one request: the items they share and those that only one of them keeps.

import { el, keyOf, number, percent, plural, svg, whole } from "./dom.js";
import { ranks } from "./list.js";

const FIRST = 40; // ranked items that are drawn
const ROW = 30; // pixels per item

/** Count what two ranked lists of ids have in common. */
export function overlap(ours, theirs) {
  const [one, other] = [ranks(ours), ranks(theirs)];
  const shared = [...one.keys()].filter((key) => other.has(key));
  const moves = shared.map((key) => Math.abs(one.get(key) - other.get(key)));
  return {
    shared: shared.length,
    onlyOurs: one.size - shared.length,
    onlyTheirs: other.size - shared.length,
    same: moves.filter((move) => move === 0).length,
    meanMove: moves.length ? moves.reduce((sum, move) => sum + move, 0) / moves.length : 0,
  };
}

const keptOf = (trace) => trace.ids.slice(0, trace.kept);

/** Return a function that labels the items that the other bundle's stage did not keep. */
export function onlyHere(trace) {
  const otherKept = new Set(trace ? keptOf(trace).map(keyOf) : []);
  return (key, kept) => (kept && !otherKept.has(key) ? "only here" : null);
}

/** Show both answers; `valuesOf` returns the attributes of an item as text. */
export function comparison(ours, theirs, valuesOf = () => "") {
  const answers = overlap(ours.ids, theirs.ids);
  const most = Math.max(ours.ids.length, theirs.ids.length);
  return el("section", { class: "comparison", "aria-label": "Comparison" },
    el("h2", {}, "This request"),
    el("div", { class: "figures" },
      figure(`${answers.shared} of ${most}`, "results shared"),
      figure(whole(answers.same), "at the same rank"),
      figure(answers.shared ? answers.meanMove.toFixed(1) : "none", "mean change of rank"),
      figure(`${answers.onlyOurs} | ${answers.onlyTheirs}`, "only main | only other")),
    slopes(ours, theirs, valuesOf),
    legend(),
    stagesTable(ours, theirs));
}

/** The legend of the lines and dots. */
function legend() {
  const kinds = { up: "higher in other", down: "lower in other", same: "at the same rank" };
  const lines = Object.entries(kinds).map(([kind, words]) => el("li", {}, el("i", { class: `line ${kind}` }), words));
  return el("ul", { class: "legend" }, lines, el("li", {}, el("i", { class: "only" }), "kept by this bundle only"));
}

const figure = (value, words) => el("div", {}, el("strong", {}, value), el("span", { class: "soft small" }, words));

/** Both result lists, with a line between the ranks of every shared item. */
function slopes(ours, theirs, valuesOf) {
  const [one, other] = [ours.ids.slice(0, FIRST), theirs.ids.slice(0, FIRST)];
  const [placeOne, placeOther] = [ranks(one), ranks(other)];
  const height = ROW * Math.max(one.length, other.length, 1);
  const lines = [...placeOne].filter(([key]) => placeOther.has(key)).map(([key, rank]) => {
    const [from, to] = [rank, placeOther.get(key)].map((at) => ROW * (at - 0.5));
    return svg("path", {
      class: `slope ${from > to ? "up" : from < to ? "down" : "same"}`, "data-key": key,
      d: `M0,${from} C50,${from} 50,${to} 100,${to}`,
    });
  });
  const shape = { viewBox: `0 0 100 ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" };
  const picture = svg("svg", shape, lines);
  picture.style.height = `${height}px`;
  const title = (name) => el("h3", {}, name, el("span", { class: "soft small" }, " results"));
  return el("div", { class: "slopes" }, title("main"), el("span"), title("other"),
    answerList("main", ours, one, placeOther, valuesOf), picture,
    answerList("other", theirs, other, placeOne, valuesOf));
}

function answerList(title, answer, ids, otherRanks, valuesOf) {
  const name = `Results of ${title}: ${plural(ids.length, "item")}`;
  return el("ol", { class: "items", role: "listbox", "aria-label": name }, ids.map((id, place) => {
    const key = keyOf(id), only = !otherRanks.has(key);
    const label = only ? `only in ${title}` : `rank ${otherRanks.get(key)} in the other`;
    const text = valuesOf(key);
    return el("li", {
      role: "option", class: "item", tabindex: place ? "-1" : "0", "data-key": key, "aria-selected": "false",
      "aria-label": [`rank ${place + 1}`, `item ${key}`, text, `score ${number(answer.scores[place])}`, label]
        .filter(Boolean).join(", "),
    }, el("span", { class: "rank" }, whole(place + 1)), el("span", { class: "id", title: key }, key),
    el("span", { class: "about", title: text }, text),
    only ? el("span", { class: "only", title: label }) : null);
  }));
}

function stagesTable(ours, theirs) {
  const count = Math.max(ours.stages.length, theirs.stages.length);
  const lines = Array.from({ length: count }, (_, place) => stageRow(ours.stages[place], theirs.stages[place]));
  const heads = ["stage", "main keeps", "other keeps", "shared", "share of the smaller"];
  return el("div", { class: "scroll", tabindex: "0" }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, lines)));
}

function stageRow(mine, yours) {
  const name = mine && yours && mine.name !== yours.name ? `${mine.name} | ${yours.name}` : (mine ?? yours).name;
  const both = mine && yours ? overlap(keptOf(mine), keptOf(yours)) : null;
  const counts = [mine?.kept, yours?.kept, both?.shared].map((count) => (count === undefined ? "none" : whole(count)));
  const cells = [...counts, both ? percent(both.shared, Math.min(mine.kept, yours.kept)) : "none"];
  return el("tr", {}, el("th", { scope: "row" }, name), cells.map((cell) => el("td", {}, cell)));
}
