// The API reference: openapi.json as a page. Descriptions are shown as they are written, paragraph by paragraph.

import { byId, element, setText } from "./dom.js";

const DEPTH_MAX = 6; // of nested schemas; a schema may contain itself

let contract = {};

function resolved(node) {
  let found = node;
  while (found?.$ref) found = found.$ref.slice(2).split("/").reduce((at, name) => at[name.replaceAll("~1", "/")], contract);
  return found ?? {};
}

const nameOf = (node) => node?.$ref?.split("/").at(-1);

// Code in backticks and bold text; links and lists stay as they are.
function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*|\*[^*\s][^*]*\*)/).map((part) => {
    if (part.startsWith("`")) return element("code", {}, part.slice(1, -1));
    if (part.startsWith("**")) return element("strong", {}, part.slice(2, -2));
    if (part.length > 2 && part.startsWith("*")) return element("em", {}, part.slice(1, -1));
    return part;
  });
}

const paragraphs = (text = "") => text.trim().split(/\n\s*\n/).filter(Boolean).map((part) => element("p", {}, ...inline(part)));

function kind(node) {
  const schema = resolved(node);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  const either = schema.oneOf ?? schema.anyOf;
  if (either) return either.map(kind).join(" or ");
  if (schema.type === "array") return `array of ${kind(schema.items ?? {})}`;
  return nameOf(node) ?? [schema.type ?? "any"].flat().join(" or ");
}

// Return a schema's fields as rows: name, kind, and description; nested ones after their parent, with its name in front.
function fields(node, prefix = "", depth = 0) {
  const schema = resolved(node);
  if (depth > DEPTH_MAX) return [];
  const inner = [...(schema.allOf ?? []), ...(schema.oneOf ?? []), ...(schema.anyOf ?? [])].flatMap((part) => fields(part, prefix, depth + 1));
  const own = Object.entries(schema.properties ?? {}).flatMap(([name, property]) => {
    const needed = schema.required?.includes(name) ? ", required" : "";
    const { description = "" } = { ...resolved(property), ...property };
    const below = nameOf(property) === nameOf(node) ? [] : fields(property, `${prefix}${name}.`, depth + 1);
    return [[prefix + name, kind(property) + needed, description], ...below];
  });
  const items = schema.type === "array" ? fields(schema.items ?? {}, prefix.replace(/\.$/, "[]."), depth + 1) : [];
  return [...inner, ...own, ...items];
}

function table(title, rows) {
  if (!rows.length) return "";
  const body = rows.map(([name, type, text]) => element("tr", {},
    element("th", { scope: "row" }, element("code", {}, name)), element("td", {}, type), element("td", {}, ...inline(text.trim()))));
  const made = element("table", { className: "fields" }, element("caption", {}, title), element("tbody", {}, ...body));
  return element("div", { className: "wide", tabIndex: 0, role: "region", ariaLabel: title }, made);
}

function content(title, node) {
  const parts = [];
  for (const [type, { schema, examples, example }] of Object.entries(resolved(node).content ?? {})) {
    parts.push(table(`${title}: ${type}${nameOf(schema) ? `, ${nameOf(schema)}` : ""}`, schema ? fields(schema) : []));
    const shown = example === undefined ? Object.values(examples ?? {}).map((each) => resolved(each).value) : [example];
    for (const value of shown) parts.push(element("pre", {}, typeof value === "string" ? value : JSON.stringify(value, null, 2)));
  }
  return parts;
}

function operation(path, method, described, shared) {
  const parameters = [...(shared ?? []), ...(described.parameters ?? [])].map(resolved);
  const answers = Object.entries(described.responses ?? {}).map(([status, node]) => [status, nameOf(node) ?? "", resolved(node).description ?? ""]);
  const successes = Object.entries(described.responses ?? {}).filter(([status]) => status.startsWith("2"));
  return element("article", { id: described.operationId ?? `${method}${path}` },
    element("details", {},
      element("summary", {}, element("span", { className: "method" }, method.toUpperCase()), element("code", {}, path), ` ${described.summary ?? ""}`),
      ...paragraphs(described.description),
      table("Parameters", parameters.map((each) => [each.name, `${each.in}, ${kind(each.schema)}${each.required ? ", required" : ""}`, each.description ?? ""])),
      ...(described.requestBody ? content("Request", described.requestBody) : []),
      table("Responses", answers),
      ...successes.flatMap(([status, node]) => content(`Response ${status}`, node))));
}

function show() {
  const main = byId("main");
  main.append(...paragraphs(contract.info.description));
  for (const tag of contract.tags ?? [{ name: undefined, description: "" }]) {
    const listed = Object.entries(contract.paths).flatMap(([path, item]) => Object.entries(item)
      .filter(([method, described]) => described.operationId && (described.tags?.[0] ?? tag.name) === tag.name)
      .map(([method, described]) => operation(path, method, described, item.parameters)));
    if (listed.length) main.append(element("section", {}, element("h2", {}, tag.name ?? "Routes"), ...paragraphs(tag.description), ...listed));
  }
  if (location.hash) open(location.hash.slice(1));
}

function open(id) {
  const chosen = byId(id);
  chosen?.querySelector("details")?.setAttribute("open", "");
  chosen?.scrollIntoView();
}

addEventListener("hashchange", () => open(location.hash.slice(1)));

try {
  const answer = await fetch("openapi.json");
  if (!answer.ok) throw new Error(`openapi.json answered ${answer.status}`);
  contract = await answer.json();
  show();
  setText(byId("status"), `Version ${contract.info.version}; the document itself is openapi.yaml`);
} catch (error) {
  setText(byId("status"), `The contract cannot be shown: ${error.message}`);
  byId("status").className = "bad";
}
