// Calls of the service, their errors, and JSON.

export class ServiceError extends Error {
  constructor(message, { status = 0, field = null, retry = null } = {}) {
    super(message);
    this.status = status; // 0: there was no response
    this.field = field;
    this.retry = retry; // seconds of the Retry-After header
  }
}

/** Send a request and return the parsed response; throw a ServiceError if that fails. */
export async function call(path, body, signal) {
  const request = body === undefined ? {} : {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: toJson(body),
  };
  let response, text;
  try {
    response = await fetch(path, { ...request, signal });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError("The service does not respond. Is it running?");
  }
  const content = contentOf(text);
  if (response.ok && content !== null) return content;
  throw new ServiceError(content?.error ?? `The service returned ${response.status} ${response.statusText}`, {
    status: response.status,
    field: content?.field ?? null,
    retry: secondsOf(response.headers.get("Retry-After")),
  });
}

function contentOf(text) {
  try {
    return fromJson(text);
  } catch {
    return null; // a proxy may return an HTML page
  }
}

function secondsOf(header) {
  return header !== null && /^\d+$/.test(header) ? Number(header) : null;
}

// --- JSON, with exact integers beyond 2^53, because ids may be that large ---------------------------------------------

export function fromJson(text) {
  return JSON.parse(text, (key, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "")
      ? BigInt(context.source)
      : value);
}

export function toJson(value) {
  return JSON.stringify(value, (key, part) => (typeof part === "bigint" ? rawNumber(part) : part));
}

function rawNumber(value) {
  return JSON.rawJSON ? JSON.rawJSON(String(value)) : Number(value);
}

/** Format JSON for the editor: a value that fits on one line stays on one line, so that every event is a line. */
export function pretty(value, indent = "") {
  const line = toJson(value);
  if (value === null || typeof value !== "object" || line.length + indent.length <= 76) return spaced(value, line);
  const inner = `${indent}  `;
  const list = Array.isArray(value);
  const lines = list
    ? value.map((one) => inner + pretty(one, inner))
    : Object.entries(value).map(([key, one]) => `${inner}${JSON.stringify(key)}: ${pretty(one, inner)}`);
  return `${list ? "[" : "{"}\n${lines.join(",\n")}\n${indent}${list ? "]" : "}"}`;
}

function spaced(value, line) {
  if (value === null || typeof value !== "object") return line;
  if (Array.isArray(value)) return `[${value.map((one) => spaced(one, toJson(one))).join(", ")}]`;
  const pairs = Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${spaced(one, toJson(one))}`);
  return `{${pairs.join(", ")}}`;
}
