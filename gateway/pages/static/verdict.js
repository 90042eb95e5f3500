// The verdict: one word, then sentences ordered by harm, each with its time, its section of the runbook and a command.

import { byId, count, element, setText } from "./dom.js";

const WORDS = { well: "Well", degraded: "Look here", failing: "Callers are affected" };
const HARMS = { page: "Callers notice it", ticket: "Callers do not notice it yet", note: "For information" };
const MODEL = "gen_ai_request_model";
const PART = "A part of the trouble above"; // a replica's, while the callers of its model are affected
const SHOWN = 4;

const clock = (time) => new Date(time).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

// Show the document of GET /admin/health.
export function showVerdict(health) {
  const box = byId("verdict");
  box.className = `full ${health.state}`;
  setText(byId("verdict-word"), WORDS[health.state]);
  setText(byId("verdict-since"), `since ${clock(health.since)}`);
  document.title = health.state === "well" ? "ttft-gateway" : `! ${WORDS[health.state]} – ttft-gateway`;
  const key = JSON.stringify(health.findings);
  const list = byId("findings");
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  const affected = new Set(health.findings.filter(({ severity }) => severity === "page").map(({ labels }) => labels[MODEL]));
  const harm = ({ severity, labels }) => (severity === "ticket" && labels[MODEL] && affected.has(labels[MODEL]) ? PART : HARMS[severity]);
  const items = health.findings.map((finding) => element("li", { className: finding.severity },
    element("p", { className: "sentence" }, capital(finding.sentence)),
    element("p", { className: "note" }, `${harm(finding)}. Since ${clock(finding.since)}. ${finding.runbook}`),
    ...(finding.command ? [element("code", { className: "command" }, finding.command)] : [])));
  const rest = items.length - SHOWN + health.more;
  list.replaceChildren(...items.slice(0, SHOWN), ...(rest > 0 ? [more(items.slice(SHOWN), rest)] : []));
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

function more(items, rest) {
  return element("li", {}, element("details", {}, element("summary", {}, `${count(rest)} more`), element("ul", {}, ...items)));
}

// Return the last failure of each replica of a model in words, by name.
export function failures(health, model) {
  const found = new Map();
  for (const { model: of, replica, state, last_failure: last } of health?.replicas ?? []) {
    if (of !== model) continue;
    const code = last?.status ? [`status ${last.status}`] : [];
    const what = last?.error === "status" && code.length ? code : [...code, last?.error];
    found.set(replica, { state, failure: last ? `${what.join(", ")}, ${clock(last.at)}` : "–" });
  }
  return found;
}
