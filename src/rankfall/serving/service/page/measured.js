// The recall of a bundle over all its items, as measured at its export.

import { el, whole } from "./dom.js";

const share = (value) => (value === null || value === undefined ? "" : `${(100 * value).toFixed(1)}\u00a0%`);
const range = ({ low, high }) => (low === null ? "" : ` (95\u00a0% interval ${(100 * low).toFixed(1)} to ${share(high)})`);

/** Return the recall in sentences, with a table of the stages. Bundles that were not measured have none. */
export function measuredView(about) {
  const { measured } = about;
  if (!measured) return null;
  const recall = measured.joint_recall;
  const words = `Joint recall ${share(recall.value)}${range(recall)} over ${whole(measured.items)} items, ` +
    `on ${whole(measured.requests)} logged requests.`;
  return el("details", { class: "measured" },
    el("summary", {}, el("span", {}, words, " ", el("span", { class: "soft" }, runWords(measured.run)))),
    el("div", { class: "scroll", tabindex: "0" }, table(measured.stages)),
    measured.not_exported ? el("p", { class: "soft small" }, `${whole(measured.not_exported)} of ` +
      `${whole(measured.relevant)} relevant items are not in the bundle; they count as lost by the first stage.`) : null);
}

function runWords(run) {
  if (!run) return "";
  const lists = run.list_length === null ? "all items" : `lists of ${whole(Math.round(run.list_length))}`;
  return `The run reported ${share(run.joint_recall)} on ${lists}.`;
}

function table(stages) {
  const heads = ["stage", "arrive", "keeps", "kept of the relevant that arrive", "chance", "lost", "share of all losses"];
  const row = (stage) => el("tr", {}, el("th", { scope: "row" }, stage.stage), [
    whole(Math.round(stage.entered)), whole(stage.quota), share(stage.kept.value) + range(stage.kept).replace("95\u00a0% interval ", ""),
    share(stage.chance), share(stage.lost.value), share(stage.loss_share.value),
  ].map((cell) => el("td", {}, cell)));
  return el("table", {},
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, stages.map(row)));
}

/** Return what a stage keeps of the relevant items that arrive, in words, or null. */
export function stageWords(about, name) {
  const stage = about.measured?.stages.find((one) => one.stage === name);
  if (!stage) return null;
  return stage.kept.value === null ? "no relevant item arrived" : `keeps ${share(stage.kept.value)} of relevant items`;
}
