// Attributes of items that were chosen at export, such as a title, and what the log knows about the items of an example.

import { call } from "./api.js";
import { el, keyOf, plural } from "./dom.js";

const MOST = 10_000; // ids of one call

/** The attributes of the items of one bundle. Calls ask only for items that are not known yet. */
export class Attributes {
  constructor(bundle, about) {
    this.bundle = bundle;
    this.model = about.model;
    this.names = about.display ?? [];
    this.items = new Map(); // by key: the values in the order of `names`, or null if the bundle has no such item
  }

  async load(ids, signal) {
    if (!this.names.length) return;
    const wanted = [...new Map(ids.map((id) => [keyOf(id), id]))].filter(([key]) => !this.items.has(key)).slice(0, MOST);
    if (!wanted.length) return;
    const body = { ids: wanted.map(([, id]) => id), bundle: this.bundle };
    const { known, display } = await call("items", body, signal);
    const columns = this.names.map((name) => display[name] ?? []);
    wanted.forEach(([key], place) => {
      this.items.set(key, known[place] ? columns.map((column) => column[place]) : null);
    });
  }

  /** Return the attributes of an item with their names, except for text, which needs none. */
  text(key) {
    const values = this.items.get(key) ?? [];
    const parts = values.map((value, place) => [this.names[place], value]).filter(([, value]) => shown(value) !== "");
    return parts.map(([name, value]) => (typeof value === "string" ? value : `${name}\u00a0${shown(value)}`)).join(" · ");
  }

  /** Return the values alone, for lists that name the attributes once. */
  values(key) {
    return (this.items.get(key) ?? []).map((value) => shown(value) || "–").join(" · ");
  }
}

function shown(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(6))); // of 32 bits
  return String(value);
}

// --- what the log knows about an example -------------------------------------------------------------------------------

/** The relevant items of a logged request, and the feedback that its items got. */
export class Reactions {
  constructor(known) {
    this.relevant = new Map((known?.relevant ?? []).map((id) => [keyOf(id), id]));
    this.feedback = new Map(); // by key: names
    for (const [name, pairs] of Object.entries(known?.feedback ?? {})) {
      for (const [id] of pairs) this.feedback.set(keyOf(id), [...(this.feedback.get(keyOf(id)) ?? []), name]);
    }
  }

  /** Return how a logged item was received, or null if the log knows nothing about it. */
  label(key) {
    const names = (this.feedback.get(key) ?? []).join(", ");
    if (this.relevant.has(key)) return names ? `relevant: ${names}` : "relevant";
    return names || null;
  }

  isRelevant(key) {
    return this.relevant.has(key);
  }

  /** Count the relevant items among ids. */
  among(ids) {
    return ids.filter((id) => this.relevant.has(keyOf(id))).length;
  }
}

/** Show where the relevant items of an example went: one button per item, which explains it. */
export function reactionsView(run, onItem) {
  const { answer, reactions, attributes } = run;
  if (!reactions?.relevant.size) return null;
  const items = [...reactions.relevant].map(([key, id]) => ({ key, id, end: endOf(answer, attributes, key) }));
  const groups = new Map();
  for (const { end: { text, group = text } } of items) groups.set(group, (groups.get(group) ?? 0) + 1);
  const words = [...groups].map(([text, count]) => `${count} ${text}`).join(", ");
  return el("section", { class: "reactions", "aria-label": "Relevant items in the log" },
    el("p", {}, el("strong", {}, `★ ${plural(items.length, "relevant item")} in the log: `), words),
    el("ul", {}, items.map(({ key, end }) => {
      const button = el("button", { type: "button", class: `chip ${end.kind}`, "data-item": key },
        el("span", { class: "chip-id" }, key), el("span", { class: "chip-about" }, attributes.text(key)),
        el("span", { class: "chip-end" }, [reactions.feedback.get(key)?.join(", "), end.text].filter(Boolean).join(" · ")));
      button.addEventListener("click", () => onItem(key));
      return el("li", {}, button);
    })));
}

function endOf(answer, attributes, key) {
  if (attributes.items.get(key) === null) return { kind: "none", text: "not in the bundle" };
  const at = answer.ids.findIndex((id) => keyOf(id) === key);
  if (at >= 0) return { kind: "good", text: `in the results at rank ${at + 1}`, group: "in the results" };
  for (const stage of answer.stages) {
    if (!stage.ids.slice(0, stage.kept).some((id) => keyOf(id) === key)) return { kind: "bad", text: `dropped by ${stage.name}` };
  }
  return { kind: "none", text: "kept, not returned" };
}
