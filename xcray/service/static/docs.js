"use strict";
// The OpenAPI description as a page. It loads nothing from other hosts, so it works offline.

function make(tag, text, ...children) {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
}

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.type === "array") return `list of ${typeOf(schema.items)}`;
  return schema.type || "any";
}

function limits(schema) {
  const words = { minimum: "at least", maximum: "at most", minLength: "characters ≥", maxLength: "characters ≤", minItems: "entries ≥", maxItems: "entries ≤", pattern: "matches" };
  const found = Object.entries(words).filter(([key]) => schema[key] !== undefined).map(([key, word]) => `${word} ${schema[key]}`);
  if (schema.default !== undefined && schema.default !== null) found.push(`default ${JSON.stringify(schema.default)}`);
  return [schema.description, ...found].filter(Boolean).join("; ");
}

function table(rows) {
  const body = make("tbody");
  for (const cells of rows) body.append(make("tr", "", ...cells.map((cell) => make("td", cell))));
  return make("table", "", body);
}

function fields(schema) {
  const required = new Set(schema.required || []);
  return table(Object.entries(schema.properties || {}).map(([name, field]) =>
    [name + (required.has(name) ? " *" : ""), typeOf(field), limits(field)]));
}

function named(reference, description) {
  return description.components.schemas[reference.split("/").pop()];
}

function operation(method, path, found, description) {
  const body = make("details", "", make("summary", "", make("code", `${method.toUpperCase()} ${path}`), ` ${(found.description || found.summary || "").split("\n")[0]}`));
  const parameters = (found.parameters || []).filter((parameter) => parameter.in !== "cookie");
  if (parameters.length) body.append(table(parameters.map((p) => [p.name + (p.required ? " *" : ""), `${p.in}: ${typeOf(p.schema)}`, limits({ ...p.schema, description: p.description })])));
  for (const [kind, content] of Object.entries(found.requestBody?.content || {})) {
    body.append(make("p", `body, ${kind}: ${typeOf(content.schema)}`));
    if (content.schema.$ref) body.append(fields(named(content.schema.$ref, description)));
  }
  const errors = [];
  for (const [status, answer] of Object.entries(found.responses)) {
    if (answer.$ref) {
      errors.push(status);
      continue;
    }
    const schema = Object.values(answer.content || {})[0]?.schema;
    body.append(make("p", `${status}: ${typeOf(schema) || answer.description}`));
    if (schema?.$ref) body.append(fields(named(schema.$ref, description)));
  }
  if (errors.length) body.append(make("p", `errors: ${errors.join(", ")}`));
  return body;
}

async function show() {
  const description = await (await fetch("/openapi.json")).json();
  document.getElementById("version").textContent = description.info.version;
  const byTag = new Map();
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, found] of Object.entries(methods)) {
      const tag = (found.tags || ["other"])[0];
      byTag.set(tag, [...(byTag.get(tag) || []), operation(method, path, found, description)]);
    }
  }
  const main = document.getElementById("paths");
  for (const [tag, operations] of byTag) main.append(make("section", "", make("h2", tag), ...operations));
}

show();
