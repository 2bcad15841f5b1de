// The funnel explorer: ranks a request with the service and shows the funnel.

import { allExamples, rankAll } from "./all_examples.js";
import { ServiceError, call, fromJson, toJson } from "./api.js";
import { Attributes, Reactions, reactionsView } from "./attributes.js";
import { comparison, onlyHere } from "./compare.js";
import { byId, el, keyOf, plural, whole } from "./dom.js";
import { RequestForm, labelOf } from "./form.js";
import { flow, overview, stageCard, times } from "./funnel.js";
import { outcomeOf, pathView, verdicts } from "./item.js";
import { moveTo, ranks } from "./list.js";
import { measuredView } from "./measured.js";

const RETRIES = 3; // if the service is busy; after that the user decides

const form = new RequestForm(() => { byId("example").value = ""; });
let bundles = { main: null, other: null };
let view = "main"; // or other, or compare
let examples = [];
let known = []; // what the log knows about the items of each example
let attributes = {}; // Attributes of the items of each bundle
let compared = null; // the rankings of all examples by both bundles: {models, examples}
let runs = []; // ranked requests: {bundle, answer, about, request, took}
let lists = []; // ItemList of every stage
let pending = new AbortController();
let retryTimer = null; // the timer of a retry

const inView = () => (view === "compare" ? ["main", "other"] : [view]);
const titleOf = (bundle) => (view === "compare" ? bundle : null);

// --- loading ---------------------------------------------------------------------------------------------------------

async function load() {
  try {
    await loadModels();
    await loadExamples();
    await follow();
  } catch (error) {
    report(error, load);
  }
}

async function loadModels() {
  ({ bundles } = await call("model"));
  const loaded = Object.entries(bundles).filter(([, about]) => about);
  attributes = Object.fromEntries(loaded.map(([bundle, about]) => [bundle, new Attributes(bundle, about)]));
  byId("models").replaceChildren(...loaded.map(modelLine));
  byId("views").hidden = !bundles.other;
  if (!bundles.other && view !== "main") setView("main");
  form.build(bundles[inView()[0]]);
}

function modelLine([bundle, about]) {
  const funnel = about.stages.map((stage) => ` → ${stage.name} ${whole(stage.quota)}`).join("");
  return el("span", { class: "model" }, bundles.other ? el("strong", {}, `${bundle} `) : null,
    el("span", { class: "soft" }, `${about.path} `), el("code", {}, about.model),
    ` ${plural(about.items, "item")}${funnel}`);
}

async function loadExamples() {
  ({ examples, known } = await call(`examples?bundle=${inView()[0]}`));
  compared = null;
  byId("example").replaceChildren(
    el("option", { value: "", disabled: examples.length > 0 }, "custom request"),
    ...examples.map((request, place) => el("option", { value: place }, labelOf(request))));
}

function pick(place) {
  const { k } = form.request;
  form.set({ ...structuredClone(examples[place] ?? {}), ...(k === undefined ? {} : { k }) });
  byId("example").value = examples[place] ? place : "";
}

function setView(name) {
  view = name;
  document.querySelector(`input[name=view][value=${name}]`).checked = true;
}

// --- calls -----------------------------------------------------------------------------------------------------------

async function rank(tries = 0) {
  startOver();
  if (form.broken) return refuse(form.broken);
  byId("results").setAttribute("aria-busy", "true");
  const { signal } = pending;
  try {
    const found = await Promise.all(inView().map((bundle) => runOf(bundle, signal)));
    await catchUp(found);
    await loadAttributes(found, signal);
    runs = found;
    showRuns();
    remember();
    return true;
  } catch (error) {
    if (error.name !== "AbortError") report(error, rank, tries);
    return false;
  } finally {
    if (signal === pending.signal) byId("results").removeAttribute("aria-busy");
  }
}

/** Cancel earlier calls and clear their errors. */
function startOver() {
  pending.abort();
  pending = new AbortController();
  clearTimeout(retryTimer);
  form.clearErrors();
  failItem(null);
  byId("banner").replaceChildren();
}

/** Report that the JSON is not a request, and remove the results of an earlier one. */
function refuse(reason) {
  byId("results").removeAttribute("aria-busy"); // the earlier call was cancelled
  showIdle();
  notice("The request cannot be read", reason);
  form.failAndFocus(null, reason);
  return false;
}

/** Show an error at the item input, or clear it. */
function failItem(message) {
  byId("item-error").textContent = message ?? "";
  if (message === null) byId("item").removeAttribute("aria-invalid");
  else byId("item").setAttribute("aria-invalid", "true");
}

async function runOf(bundle, signal) {
  const request = structuredClone(form.request);
  request.time ??= new Date().toISOString(); // fixed now, so that a later explanation uses the same time
  const place = byId("example").value;
  const reactions = new Reactions(place === "" ? null : known[place]);
  const begin = performance.now();
  const answer = await call("rank", { ...request, explain: true, bundle }, signal);
  return { bundle, answer, request, reactions, about: bundles[bundle], took: performance.now() - begin };
}

/** Load the attributes of all items that a stage returned, the last stage first, and of the relevant ones. */
async function loadAttributes(found, signal) {
  await Promise.all(found.map((run) => {
    run.attributes = attributes[run.bundle];
    const listed = run.answer.stages.toReversed().flatMap((stage) => stage.ids);
    return run.attributes.load([...run.reactions.relevant.values(), ...listed], signal);
  }));
}

/** Load the descriptions again if a bundle was replaced since the page was loaded. */
async function catchUp(found) {
  const isNew = (run) => run.answer.model !== bundles[run.bundle]?.model;
  if (!found.some(isNew)) return;
  await loadModels();
  if (found.some(isNew)) throw new ServiceError("The service is replacing its bundle", { status: 503, retry: 1 });
  for (const run of found) run.about = bundles[run.bundle];
}

async function explain(text, mayRank = true) {
  if (!runs.length && !(await rank())) return;
  failItem(null);
  byId("item").value = text;
  try {
    const id = idOf(text);
    const answers = await Promise.all(runs.map((run) => scoresOf(id, run)));
    if (mayRank && answers.some(({ model }, place) => model !== runs[place].answer.model)) {
      runs = []; // these scores come from another bundle
      await explain(text, false);
      return;
    }
    await Promise.all(runs.map((run) => run.attributes.load([id], pending.signal)));
    showPath(id, runs.map((run, place) => verdicts(id, run, answers[place].scores)));
    remember();
  } catch (problem) {
    if (problem.name === "AbortError") return;
    byId("path").replaceChildren();
    announce([]);
    failItem(problem.message);
  }
}

/** Parse an item id: an integer or text, like the ids of the results. */
function idOf(text) {
  const known = runs.flatMap((run) => run.answer.stages[0].ids)[0];
  const isNumber = /^-?\d+$/.test(text);
  if (typeof known === "string") return text;
  if (known !== undefined && !isNumber) {
    throw new ServiceError(`found ${text || "nothing"}, expected an item id, which is an integer`);
  }
  return isNumber ? fromJson(text) : text;
}

async function scoresOf(id, run) {
  const { k, candidates, exclude, ...rest } = run.request;
  const { model, scores } = await call("score", { ...rest, candidates: [id], bundle: run.bundle }, pending.signal);
  return { model, scores: Object.fromEntries(Object.entries(scores).map(([stage, [score]]) => [stage, score])) };
}

// --- views -----------------------------------------------------------------------------------------------------------

function showIdle() {
  if (!bundles.main) return;
  runs = [];
  lists = [];
  byId("path").replaceChildren();
  announce([]);
  const hint = "Choose an example user or enter a request, then press Rank to see what every stage keeps and drops.";
  const pictures = inView().flatMap((bundle) => [measuredView(bundles[bundle]), overview(flow(bundles[bundle]))]);
  byId("funnel").replaceChildren(...pictures.filter(Boolean), el("p", { class: "idle soft" }, hint));
}

function showRuns() {
  const parts = runs.map((run) => ({ ...run, steps: flow(run.about, run.answer, run.request) }));
  lists = [];
  lit = undefined;
  byId("path").replaceChildren();
  byId("funnel").replaceChildren(...(view === "compare" ? pairs(parts) : [
    runView(parts[0]),
    cardsOf(parts[0]),
  ]));
  for (const { answer } of parts) form.flag(answer.notes ?? []);
  if (view === "compare") compareAll();
  announce(parts.map(({ bundle, steps }) =>
    [titleOf(bundle), steps.map((step) => `${step.name} kept ${step.kept} of ${step.received}`).join(", ")]));
}

/** Show the stages side by side. */
function cardsOf(run) {
  const cards = el("div", { class: "cards" }, run.steps.map((_, place) => cardOf(run, place)));
  cards.style.setProperty("--columns", Math.min(run.steps.length, 4));
  return el("div", {}, namesLine([run]), cards);
}

/** Name the attributes that lists show below each item. */
function namesLine(shown) {
  const names = shown.map(({ attributes: of }) => of.names.join(" · "));
  const words = new Set(names).size === 1 ? names[0]
    : shown.map(({ bundle }, place) => `${bundle}: ${names[place] || "none"}`).join("; ");
  return names.some(Boolean) ? el("p", { class: "names soft small" }, `Below each item: ${words}`) : null;
}

/** Show what the bundles have in common over all examples, which are ranked once. */
async function compareAll() {
  const place = byId("all-examples");
  const models = runs.map((run) => run.answer.model);
  try {
    if (String(compared?.models) !== String(models)) compared = examples.length ? await rankAll(examples, known) : null;
  } catch (error) {
    if (!(error instanceof ServiceError)) throw error;
    place.replaceChildren(el("p", { class: "notice" }, `The examples cannot be compared: ${error.message}`));
    return;
  }
  const show = (number) => { pick(number); rank(); };
  place.replaceChildren(compared ? allExamples(compared, show)
    : el("p", { class: "notice" }, "The main bundle keeps no examples; 'rankfall export --examples' sets their number."));
}

/** Show both bundles, stage by stage. */
function pairs(parts) {
  const [ours, theirs] = parts;
  const count = Math.max(...parts.map((run) => run.steps.length));
  const cards = Array.from({ length: count }, (_, place) =>
    el("div", { class: "cards pair" }, cardOf(ours, place, theirs), cardOf(theirs, place, ours)));
  const valuesOf = (key) => ours.attributes.values(key) || theirs.attributes.values(key);
  const all = el("div", { id: "all-examples" }, el("p", { class: "soft" }, "Ranking all examples …"));
  const one = comparison(ours.answer, theirs.answer, valuesOf);
  const found = [el("div", { class: "pair" }, parts.map(runView)), all, one, namesLine(parts), ...cards];
  return found.filter((part) => part !== null);
}

function runView(run) {
  const { bundle, answer, about, steps, took } = run;
  const title = titleOf(bundle) && [el("h2", {}, `${bundle} `, el("code", {}, answer.model)), bundleLine(about)];
  return el("div", {}, ...(title ?? []), measuredView(about), overview(steps), times(answer, took), unknownNote(answer),
    unseenNote(answer), reactionsView(run, explain));
}

/** Show the name of a bundle and, if its recall was not measured at export, the first of the run's test metrics. */
function bundleLine({ path, metrics, measured }) {
  const [[name, value] = []] = Object.entries(metrics?.test?.metrics ?? {});
  const found = typeof value === "number" && !measured ? ` · ${name} ${value.toFixed(4)} on ${metrics.test.split}` : "";
  return el("p", { class: "bundle soft small" }, "bundle ", el("strong", {}, path), found);
}

function cardOf(run, place, than = null) {
  const { stages, ids } = run.answer;
  if (!stages[place]) return el("div");
  const { element, list } = stageCard(run.steps[place], stages[place], titleOf(run.bundle), {
    before: place ? ranks(stages[place - 1].ids) : null,
    answered: place === stages.length - 1 ? ids.length : null,
    marked: than && onlyHere(than.answer.stages[place]),
    attributes: run.attributes,
    reactions: run.reactions,
  });
  lists.push(list);
  return element;
}

function unknownNote({ unknown }) {
  if (!unknown.length) return null;
  const some = unknown.slice(0, 5).map(keyOf).join(", ") + (unknown.length > 5 ? ", …" : "");
  return el("p", { class: "notice" }, `Not in the bundle: ${plural(unknown.length, "candidate")} (${some})`);
}

/** Show the values of a request that count as unknown, because training has never seen them. */
function unseenNote({ notes }) {
  if (!notes?.length) return null;
  return el("div", { class: "notice" }, el("strong", {}, "Never seen in training"),
    el("ul", {}, notes.map((note) => el("li", {}, note.replace(/ (was|that was) never seen in training/, "")))));
}

function showPath(id, found) {
  const views = found.map((one, place) => {
    const { attributes: of, reactions, bundle } = runs[place];
    const label = reactions.label(keyOf(id));
    const about = [label === null ? "" : `in the log: ${label}`, of.text(keyOf(id))].filter(Boolean).join(" · ");
    return pathView(id, one, titleOf(bundle), about);
  });
  byId("path").replaceChildren(el("div", { class: views.length > 1 ? "pair" : null }, views));
  for (const list of lists) list.choose(keyOf(id));
  announce(found.map((one, place) => [titleOf(runs[place].bundle), `item ${keyOf(id)}: ${outcomeOf(one).text}`]));
  byId("path").scrollIntoView({ block: "nearest" });
}

/** Set the text that screen readers announce. */
function announce(parts) {
  byId("announcement").textContent = parts.map((words) => words.filter(Boolean).join(": ")).join("; ");
}

// --- errors ----------------------------------------------------------------------------------------------------------

function report(error, again, tries = 0) {
  if (!(error instanceof ServiceError)) throw error;
  showIdle();
  if (error.status === 422 || error.status === 400) {
    notice("The request has an invalid value", error.message);
    return form.failAndFocus(error.field, withoutPath(error));
  }
  if (error.status === 503) return busy(error, again, tries);
  if (error.status === 504) {
    const longer = 'The JSON of the request can set a longer deadline, for example "deadline": 5000 (milliseconds).';
    return notice("The response took too long", `${error.message}. ${longer}`, again);
  }
  return notice(error.status ? "The service refused the request" : "No response", error.message, again);
}

/** Return the message of an error without the path of the field, which is shown at that field. */
function withoutPath({ message, field }) {
  return field && message.startsWith(`${field}: `) ? message.slice(field.length + 2) : message;
}

function busy(error, again, tries) {
  const seconds = error.retry ?? 1;
  if (tries >= RETRIES) return notice("The service is busy", `${tries + 1} attempts failed.`, again);
  retryTimer = setTimeout(() => again(tries + 1), 1000 * seconds);
  return notice("The service is busy", `Trying again in ${seconds} s (${tries + 1} of ${RETRIES}).`, again);
}

function notice(title, text, again = null) {
  const button = again && el("button", { type: "button" }, "Try now");
  button?.addEventListener("click", () => {
    clearTimeout(retryTimer);
    byId("banner").replaceChildren();
    again();
  });
  const words = [el("strong", {}, title), el("p", {}, text), button];
  byId("banner").replaceChildren(el("div", { class: "notice bad" }, words));
  byId("banner").scrollIntoView({ block: "nearest" });
}

// --- links -----------------------------------------------------------------------------------------------------------

/** Store the view in the address, so that it can be shared as a link. */
function remember() {
  const words = new URLSearchParams();
  const place = byId("example").value;
  if (place !== "") words.set("example", place);
  else words.set("request", toJson(form.request));
  if (place !== "" && form.request.k !== undefined) words.set("k", form.request.k);
  if (view !== "main") words.set("view", view);
  if (byId("path").firstChild) words.set("item", byId("item").value);
  history.replaceState(null, "", `#${words}`);
}

/** Restore the view from the address. */
async function follow() {
  const words = new URLSearchParams(location.hash.slice(1));
  const wanted = words.get("view");
  if (bundles.other && ["main", "other", "compare"].includes(wanted) && wanted !== view) await switchView(wanted);
  const asked = words.has("example") || words.has("request");
  pick(Number(words.get("example") ?? 0));
  if (words.has("request")) {
    form.json.value = words.get("request");
    form.readJson();
    if (form.broken) return rank(); // shows the error
    form.show();
  } else if (words.has("k")) form.set({ ...form.request, k: fromJsonOrText(words.get("k")) });
  if (!asked && !examples.length) showIdle();
  else if (words.has("item")) await explain(words.get("item"));
  else await rank();
}

function fromJsonOrText(text) {
  return /^\d+$/.test(text) ? Number(text) : text;
}

async function switchView(name) {
  const [before] = inView();
  setView(name);
  if (inView()[0] === before) return;
  form.build(bundles[inView()[0]]);
  await loadExamples();
}

// --- events ----------------------------------------------------------------------------------------------------------

byId("request").addEventListener("submit", (event) => { event.preventDefault(); rank(); });
byId("find").addEventListener("submit", (event) => { event.preventDefault(); explain(byId("item").value.trim()); });
byId("example").addEventListener("change", (event) => { pick(Number(event.target.value)); rank(); });
byId("views").addEventListener("change", async (event) => {
  const place = byId("example").value;
  try {
    await switchView(event.target.value);
    if (place !== "") pick(Number(place));
    await rank();
  } catch (error) {
    report(error, load);
  }
});
addEventListener("hashchange", () => follow().catch((error) => report(error, load)));

const TYPED = "input[type=text], textarea, select"; // where keys type text

addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    rank();
  } else if (event.key === "Escape" && event.target.closest(TYPED)) event.target.blur();
  else if (event.key === "/" && !event.target.closest(TYPED)) {
    event.preventDefault();
    byId("item").select();
  } else if (event.target.matches("[role=option]")) onItemKey(event);
});

function onItemKey(event) {
  const item = event.target;
  const near = {
    ArrowDown: () => nextOption(item, "nextElementSibling"),
    ArrowUp: () => nextOption(item, "previousElementSibling"),
    Home: () => item.parentElement.querySelector("[role=option]"),
    End: () => [...item.parentElement.querySelectorAll("[role=option]")].at(-1),
    ArrowRight: () => sameItem(item, 1),
    ArrowLeft: () => sameItem(item, -1),
  }[event.key];
  if (near) {
    event.preventDefault();
    const target = near();
    if (target) moveTo(target);
  } else if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    explain(item.dataset.key);
  }
}

/** Return the next item of the list, skipping notes. */
function nextOption(item, way) {
  let next = item[way];
  while (next && next.getAttribute("role") !== "option") next = next[way];
  return next;
}

function sameItem(item, by) {
  const all = [...byId("funnel").querySelectorAll("[role=option]")];
  const same = all.filter((one) => one.dataset.key === item.dataset.key);
  return same[same.indexOf(item) + by];
}

let lit; // the key of the item under the mouse or with the focus

/** Highlight an item in all lists. */
function light(event) {
  const key = event.target.closest?.("[data-key]")?.dataset.key;
  if (key === lit) return;
  lit = key;
  for (const one of byId("funnel").querySelectorAll(".lit")) one.classList.remove("lit");
  if (key === undefined) return;
  for (const one of byId("funnel").querySelectorAll("[data-key]")) one.classList.toggle("lit", one.dataset.key === key);
}

for (const kind of ["mouseover", "focusin"]) byId("funnel").addEventListener(kind, light);
byId("funnel").addEventListener("mouseleave", light);
byId("funnel").addEventListener("click", (event) => {
  const item = event.target.closest("[role=option]");
  if (item) explain(item.dataset.key);
});

new ResizeObserver(([{ target }]) => {
  document.documentElement.style.setProperty("--header", `${target.offsetHeight}px`); // the request panel fits below the header
}).observe(document.querySelector("header"));
byId("features").open = matchMedia("(min-width: 60rem)").matches; // on a phone the funnel comes first
load();
