// The request as a form made of the bundle's schema, and as JSON; the two stay in step.

import { fromJson, pretty, toJson } from "./api.js";
import { byId, el, plural } from "./dom.js";

const GROUPS = ["user", "context"];

export class RequestForm {
  constructor(onEdit) {
    this.request = {};
    this.broken = null; // why the editor holds no request
    this.onEdit = onEdit;
    this.fields = new Map(); // by path, such as user.age
    this.json = byId("json");
    this.json.addEventListener("input", () => this.readJson());
  }

  /** Make the fields that a bundle's requests have. */
  build(about) {
    const { properties } = about.schema;
    const last = about.stages.at(-1);
    this.fields.clear();
    const parts = [];
    for (const group of GROUPS) {
      const features = Object.entries(properties[group]?.properties ?? {}).filter(([, of]) => isTyped(of));
      const needed = properties[group]?.required ?? [];
      const made = features.map(([name, of]) => this.field(`${group}.${name}`, name, hint(of, needed.includes(name))));
      if (made.length) parts.push(el("fieldset", { class: "fields" }, el("legend", {}, group), made));
    }
    parts.push(el("fieldset", { class: "fields" }, el("legend", {}, "request"),
      this.field("time", "time", "now", { wide: true }),
      this.field("k", "k", `1 to ${last.quota}`, { mode: "numeric" })));
    byId("fields").replaceChildren(...parts);
    this.show();
  }

  field(path, label, placeholder, { mode = null, wide = false } = {}) {
    const id = `field-${path}`;
    const input = el("input", {
      id, type: "text", placeholder, inputmode: mode, autocomplete: "off", spellcheck: "false",
      "aria-describedby": `${id}-error`,
    });
    const error = el("p", { id: `${id}-error`, class: "error", role: "alert" });
    input.addEventListener("input", () => this.readField(path, input));
    this.fields.set(path, { input, error });
    return el("div", { class: wide ? "field wide" : "field" }, el("label", { for: id }, label), input, error);
  }

  set(request) {
    this.request = request;
    this.broken = null;
    for (const { input } of this.fields.values()) input.disabled = false;
    this.clearErrors();
    this.show();
  }

  show() {
    this.showFields();
    this.showJson();
  }

  showFields() {
    for (const [path, { input }] of this.fields) input.value = shown(valueAt(this.request, path));
    this.showSummary();
  }

  showJson() {
    this.json.value = pretty(this.request);
    this.showSummary();
  }

  showSummary() {
    const { sequences, candidates, exclude } = this.request;
    const parts = Object.entries(sequences ?? {}).map(([name, of]) => `${name}: ${plural(eventsOf(of), "event")}`);
    if (Array.isArray(candidates)) parts.push(plural(candidates.length, "candidate"));
    if (Array.isArray(exclude)) parts.push(`${exclude.length} excluded`);
    byId("summary").textContent = parts.join(" · ");
  }

  readField(path, input) {
    setAt(this.request, path, typed(input.value));
    this.clearErrors();
    this.showJson();
    this.onEdit();
  }

  readJson() {
    this.clearErrors();
    this.broken = this.parsed();
    // fields would write over what is half typed here
    for (const { input } of this.fields.values()) input.disabled = this.broken !== null;
    if (this.broken) this.fail(null, this.broken);
    else {
      this.showFields();
      this.onEdit();
    }
  }

  /** Take what the editor says; gives what is wrong with it, if anything. */
  parsed() {
    try {
      const request = fromJson(this.json.value);
      if (Object(request) !== request || Array.isArray(request)) return "expected an object { … }";
      this.request = request;
      return null;
    } catch (error) {
      return `no JSON: ${error.message}`;
    }
  }

  /** Say what is wrong at the field that is, or at the editor, which has all of them; gives where that is. */
  fail(path, message) {
    const field = this.fields.get(path ?? "");
    const [input, error] = field ? [field.input, field.error] : [this.json, byId("json-error")];
    byId(field ? "features" : "whole").open = true;
    error.textContent = message;
    input.setAttribute("aria-invalid", "true");
    return input;
  }

  /** Say what is wrong, and go where it is: the field and the words about it have to be in the window. */
  goWrong(path, message) {
    const input = this.fail(path, message);
    input.focus({ preventScroll: true });
    input.closest(".field, details").scrollIntoView({ block: "nearest" });
  }

  clearErrors() {
    const editor = { input: this.json, error: byId("json-error") };
    for (const { input, error } of [...this.fields.values(), editor]) {
      error.textContent = "";
      input.removeAttribute("aria-invalid");
    }
  }
}

/** A user in a few words: the first features that are known. */
export function labelOf(request) {
  const known = Object.entries(request.user ?? {}).filter(([, value]) => value !== null);
  const text = (value) => ("id" in Object(value) ? `row ${value.id}` : shown(value));
  const words = known.slice(0, 3).map(([name, value]) => `${name} ${text(value)}`);
  return words.join(", ") || "nothing is known of the user";
}

function eventsOf(sequence) {
  if (Array.isArray(sequence)) return sequence.length;
  return Object.values(sequence ?? {})[0]?.length ?? 0; // columns
}

/** Whether one can type a value: not of what no stage looks at, nor of what follows from the time of the request. */
function isTyped(schema) {
  return (schema.anyOf ?? []).some((of) => !["null", "object"].includes(of.type));
}

function hint(schema, needed) {
  const kinds = schema.anyOf.map((of) => {
    if (of.format === "date-time") return "time";
    if (of.type === "integer") return of.description ? null : "whole number";
    if (of.type === "array") return `list of ${of.minItems}`;
    return { string: "text", number: "number" }[of.type] ?? null;
  });
  return `${kinds.filter(Boolean).join(" or ")}${needed ? ", needed" : ""}`;
}

// --- values as one types them ----------------------------------------------------------------------------------------

/** 7 is a number, "7" in quotes is text, and so is what is no JSON; nothing is a value that is left out. */
function typed(text) {
  const trimmed = text.trim();
  if (trimmed === "") return undefined;
  try {
    return fromJson(trimmed);
  } catch {
    return trimmed;
  }
}

function shown(value) {
  if (value === undefined || value === null) return "";
  if (typeof value !== "string") return toJson(value);
  return typed(value) === value ? value : JSON.stringify(value);
}

function valueAt(request, path) {
  const [group, ...name] = path.split(".");
  return name.length ? request[group]?.[name.join(".")] : request[group];
}

function setAt(request, path, value) {
  const [group, ...rest] = path.split(".");
  const name = rest.join(".");
  if (!name) put(request, group, value);
  else {
    if (typeof request[group] !== "object" || request[group] === null) request[group] = {};
    put(request[group], name, value);
  }
}

function put(object, name, value) {
  if (value === undefined) delete object[name];
  else object[name] = value;
}
