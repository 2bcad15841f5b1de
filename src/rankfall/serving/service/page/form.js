// The request as a form, built from the bundle's schema, and as JSON; both are kept in sync.

import { fromJson, pretty, toJson } from "./api.js";
import { byId, el, plural } from "./dom.js";

const GROUPS = ["user", "context"];

export class RequestForm {
  constructor(onEdit) {
    this.request = {};
    this.broken = null; // why the JSON in the editor is not a request, or null
    this.onEdit = onEdit;
    this.fields = new Map(); // by path, such as user.age
    this.json = byId("json");
    this.json.addEventListener("input", () => this.readJson());
  }

  /** Build the fields of a bundle's requests. */
  build(about) {
    const { properties } = about.schema;
    const last = about.stages.at(-1);
    this.fields.clear();
    const parts = [];
    for (const group of GROUPS) {
      const features = Object.entries(properties[group]?.properties ?? {}).filter(([, of]) => isEditable(of));
      const required = properties[group]?.required ?? [];
      const made = features.map(([name, of]) => this.field(`${group}.${name}`, name, hint(of, required.includes(name))));
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
    // otherwise a field could overwrite the incomplete JSON
    for (const { input } of this.fields.values()) input.disabled = this.broken !== null;
    if (this.broken) this.fail(null, this.broken);
    else {
      this.showFields();
      this.onEdit();
    }
  }

  /** Read the request from the editor; return the error message, or null. */
  parsed() {
    try {
      const request = fromJson(this.json.value);
      if (Object(request) !== request || Array.isArray(request)) return "expected an object { … }";
      this.request = request;
      return null;
    } catch (error) {
      return `not valid JSON: ${error.message}`;
    }
  }

  /** Show an error at the field of a path, or at the editor if there is no such field; return that input. */
  fail(path, message) {
    const field = this.fields.get(path ?? "");
    const [input, error] = field ? [field.input, field.error] : [this.json, byId("json-error")];
    byId(field ? "features" : "whole").open = true;
    error.textContent = message;
    input.setAttribute("aria-invalid", "true");
    return input;
  }

  /** Show an error and focus its input; the input and the message must be in the window. */
  failAndFocus(path, message) {
    const input = this.fail(path, message);
    input.focus({ preventScroll: true });
    input.closest(".field, details").scrollIntoView({ block: "nearest" });
  }

  /** Mark the fields whose values were never seen in training; `notes` begin with the paths of the fields. */
  flag(notes) {
    for (const note of notes) {
      const field = this.fields.get(note.split(": ", 1)[0]);
      if (!field) continue;
      field.error.textContent = "never seen in training";
      field.error.classList.add("warn");
    }
  }

  clearErrors() {
    const editor = { input: this.json, error: byId("json-error") };
    for (const { input, error } of [...this.fields.values(), editor]) {
      error.textContent = "";
      error.classList.remove("warn");
      input.removeAttribute("aria-invalid");
    }
  }
}

/** Label a user by the first features that have a value. */
export function labelOf(request) {
  const known = Object.entries(request.user ?? {}).filter(([, value]) => value !== null);
  const text = (value) => ("id" in Object(value) ? `row ${value.id}` : shown(value));
  const words = known.slice(0, 3).map(([name, value]) => `${name} ${text(value)}`);
  return words.join(", ") || "user without features";
}

function eventsOf(sequence) {
  if (Array.isArray(sequence)) return sequence.length;
  return Object.values(sequence ?? {})[0]?.length ?? 0; // stored as columns
}

/** Whether a feature has an input: not if no stage uses it or if it is derived from the time of the request. */
function isEditable(schema) {
  return (schema.anyOf ?? []).some((of) => !["null", "object"].includes(of.type));
}

function hint(schema, required) {
  const kinds = schema.anyOf.map((of) => {
    if (of.format === "date-time") return "time";
    if (of.type === "integer") return of.description ? null : "integer";
    if (of.type === "array") return `list of ${of.minItems}`;
    return { string: "text", number: "number" }[of.type] ?? null;
  });
  return `${kinds.filter(Boolean).join(" or ")}${required ? ", required" : ""}`;
}

// --- values in inputs -------------------------------------------------------------------------------------------------

/** Parse an input: 7 is a number, "7" in quotes and anything that is not JSON is text, an empty input is no value. */
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
