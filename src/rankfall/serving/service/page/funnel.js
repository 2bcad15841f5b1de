// The funnel: a diagram of all stages, and for each stage the items it received.

import { el, milliseconds, number, percent, svg, whole } from "./dom.js";
import { ItemList } from "./list.js";
import { stageWords } from "./measured.js";

/** Count the items that each stage received and kept, from an answer or, without one, from the quotas. */
export function flow(about, answer, request) {
  let received = about.items;
  return about.stages.map((stage, place) => {
    const trace = answer?.stages[place];
    if (trace && (place > 0 || Array.isArray(request?.candidates))) received = trace.ids.length;
    const kept = trace ? trace.kept : Math.min(received, stage.quota);
    const one = {
      name: stage.name, received, kept, about: stage, milliseconds: trace?.milliseconds ?? null,
      measured: stageWords(about, stage.name),
    };
    received = kept;
    return one;
  });
}

// --- the diagram -----------------------------------------------------------------------------------------------------

/** Draw a band that narrows stage by stage: received items light, kept items solid, on a logarithmic scale. */
export function overview(steps) {
  const most = Math.log1p(Math.max(...steps.map((step) => step.received), 1));
  const half = (count) => (count ? 2 + (46 * Math.log1p(count)) / most : 0);
  const parts = steps.flatMap((step, place) => {
    const left = 100 * place, inside = half(step.received), outside = half(step.kept);
    return [
      svg("path", { class: "came", d: taper(left, inside, outside) }),
      svg("rect", { class: "kept", x: left, y: 50 - outside, width: 100, height: 2 * outside }),
      svg("line", { class: "gate", x1: left + 100, x2: left + 100, y1: 2, y2: 98 }),
    ];
  });
  const description = steps.map((step) => `${step.name} keeps ${whole(step.kept)} of ${whole(step.received)}`).join(", ");
  const picture = svg("svg", {
    viewBox: `0 0 ${100 * steps.length} 100`, preserveAspectRatio: "none", role: "img", "aria-label": description,
  }, svg("title", {}, `${description}; heights are logarithmic`), parts);
  const labels = el("ol", { class: "labels" }, steps.map(label));
  labels.style.setProperty("--stages", steps.length);
  const scale = el("figcaption", { class: "soft small" }, "Heights are on a logarithmic scale.");
  return el("figure", { class: "overview" }, picture, labels, scale);
}

function taper(left, inside, outside) {
  const right = left + 100, middle = left + 45;
  return `M${left},${50 - inside} C${middle},${50 - inside} ${middle},${50 - outside} ${right},${50 - outside} ` +
    `L${right},${50 + outside} C${middle},${50 + outside} ${middle},${50 + inside} ${left},${50 + inside} Z`;
}

function label(step) {
  return el("li", { "data-stage": step.name },
    el("strong", {}, step.name),
    el("span", { class: "counts" }, `${whole(step.received)} → ${whole(step.kept)}`),
    el("span", { class: "soft small" }, `${percent(step.kept, step.received)} kept`,
      step.milliseconds === null ? "" : ` · ${milliseconds(step.milliseconds)}`),
    el("span", { class: "soft small" }, servedBy(step.about)),
    step.measured ? el("span", { class: "soft small" }, step.measured) : null);
}

function servedBy({ model, index }) {
  if (!index) return model;
  return `${model}, ${index.kind === "exact" ? "exact index" : `IVF index, recall ${index.recall.toFixed(3)}`}`;
}

/** Draw the time of every step as one bar. */
export function times(answer, took) {
  const parts = Object.entries(answer.milliseconds ?? {});
  const inside = parts.reduce((sum, [, value]) => sum + value, 0);
  const all = [...parts, ["network and other", Math.max(0, took - inside)]];
  const shade = (place) => (place === parts.length ? "rest" : `color${(place + 5) % 6}`); // grey for the queue
  const bar = el("div", { class: "times", "aria-hidden": "true" }, all.map(([, value], place) => {
    const piece = el("i", { class: shade(place) });
    piece.style.flexGrow = value;
    return piece;
  }));
  const words = all.map(([name, value], place) => el("li", {}, el("i", { class: shade(place) }),
    `${name} ${milliseconds(value)}`));
  return el("div", { class: "spent" }, bar, el("ul", { class: "legend" }, words));
}

// --- the items of a stage --------------------------------------------------------------------------------------------

/** Create a card with the items of a stage; `options` are passed to their list. */
export function stageCard(step, trace, title, options) {
  const name = title ? `${title} ${step.name}` : step.name;
  const list = new ItemList(trace, { ...options, name, unlisted: step.received - trace.ids.length });
  const element = el("section", { class: "card", "data-stage": step.name, "aria-label": name },
    el("h3", {}, title ? el("span", { class: "soft" }, `${title}: `) : null, step.name,
      el("span", { class: "soft small" }, milliseconds(step.milliseconds))),
    el("p", { class: "soft small" }, `${whole(step.received)} received, ${whole(step.kept)} kept`,
      trace.threshold === null ? "" : `, threshold ${number(trace.threshold)}`),
    trace.ids.length ? list.element : el("p", { class: "soft" }, "This stage received no items."), list.more);
  return { element, list };
}
