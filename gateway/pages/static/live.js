// The live page: reads the state of the chosen model every 2 s, and follows the event feed for races and first tokens.

import { change, follow, keepKey, read, Refused } from "./admin.js";
import { byId, count, element, fillFigures, fillTable, milliseconds, quantile, seconds, setText } from "./dom.js";
import { drawHistory } from "./history.js";
import { drawRequests, raceItem } from "./plots.js";
import { failures, showVerdict } from "./verdict.js";

const READ_MS = 2000;
const SLOW_MS = 10000; // usage, proof and workers change slowly
const DRAW_MS = 1000;
const WINDOW_S = 300;
const SAMPLES_MAX = 5000;
const RACES_MAX = 12;
const RETRY_MS_MAX = 15000;
const REPLICAS_SHOWN = 12; // of more than 15, unless all are asked for
const HARMS = ["failing", "slow", "taken out", "draining"]; // states in the order of the table

const page = { model: decodeURIComponent(location.hash.slice(1)), paused: false, fault: null, lost: 0, health: null, history: null, hedging: true, allReplicas: false };
let samples = []; // {at_s, ttft_s, backup} of the chosen model
let races = []; // the newest ended requests to show
let denials = new Map();

// ---- what is shown

function showStatus() {
  const text = page.fault ?? (page.paused ? "Paused" : `Live${page.lost ? `, ${count(page.lost)} events skipped` : ""}`);
  setText(byId("status"), text);
  byId("status").className = page.fault ? "bad" : "";
}

function showModels(models) {
  const select = byId("model");
  const names = models.map(({ model }) => model);
  if (names.join("\n") !== [...select.options].map(({ value }) => value).join("\n")) {
    select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
  }
  if (!names.includes(page.model)) choose(names[0] ?? "");
  select.value = page.model;
}

function choose(model) {
  page.model = model;
  history.replaceState(null, "", `#${encodeURIComponent(model)}`);
  samples = [];
  races = [];
  denials = new Map();
}

const KINDS = { failing: "state bad", slow: "state slow", "taken out": "state out", draining: "state out" };

function predicted(usual) {
  if (!usual) return "–";
  const known = usual.p10 !== null && usual.p90 !== null;
  return known ? `${milliseconds(usual.ttft)} (${milliseconds(usual.p10)} to ${milliseconds(usual.p90)})` : milliseconds(usual.ttft);
}

function showModel(described) {
  page.described = described;
  const known = failures(page.health, described.model);
  const quotas = new Map();
  const replicas = [];
  for (const pool of described.pools) {
    for (const replica of pool.replicas) {
      const { state = "in use", failure = "–" } = known.get(replica.replica) ?? {};
      const words = replica.draining ? "draining" : replica.out ? "taken out" : state;
      replicas.push({ replica, failure, words, name: described.pools.length > 1 ? `${replica.replica} (${pool.pool})` : replica.replica });
    }
    for (const quota of pool.quotas ?? []) quotas.set(quota.quota, quota);
  }
  const rank = ({ words }) => (HARMS.includes(words) ? HARMS.indexOf(words) : HARMS.length);
  replicas.sort((one, other) => rank(one) - rank(other));
  const many = replicas.length > REPLICAS_SHOWN + 3;
  const shown = many && !page.allReplicas ? replicas.slice(0, REPLICAS_SHOWN) : replicas;
  byId("all-replicas").hidden = !many;
  setText(byId("all-replicas"), page.allReplicas ? "Show fewer" : `Show all ${replicas.length} replicas`);
  fillTable(byId("replica-rows"), shown.map(replicaRow), [3, 4, 5, 6, 7]);
  showQuotas([...quotas.values()]);
  showHedging(described);
}

function replicaRow({ replica, failure, words, name }) {
  return [
    name, { text: words, kind: KINDS[words] ?? "state good" }, failure, count(replica.in_flight),
    milliseconds(replica.ttft_ms?.p50), milliseconds(replica.ttft_ms?.p99), predicted(replica.predicted_ms),
    milliseconds(replica.hedge_delay_ms), replica.quota ?? "–",
    { button: replica.out ? "Take in" : "Take out", replica: replica.replica, out: String(!replica.out) },
  ];
}

function showQuotas(quotas) {
  byId("quotas").hidden = !quotas.length;
  fillTable(byId("quota-rows"), quotas.flatMap((quota) => {
    const cooling = quota.cooling_s ? seconds(quota.cooling_s) : "–";
    if (!quota.limits.length) return [[quota.quota, "no limit known", "–", "–", "–", "–", cooling]];
    return quota.limits.map((limit) => [
      quota.quota, limit.resource, count(Math.round(limit.left)), count(limit.limit), seconds(limit.window_s), limit.from, cooling,
    ]);
  }), [2, 3, 4, 6]);
}

function showHedging(described) {
  const [pool] = described.pools;
  if (!pool) return;
  const switchedOn = pool.hedging === "on";
  const off = pool.policy === "off";
  setText(byId("hedging-state"), off ? "The policy of this model is off." : `Policy ${pool.policy}; the switch is ${switchedOn ? "on" : "off"}.`);
  const button = byId("hedging-switch");
  button.hidden = off;
  setText(button, switchedOn ? "Switch hedging off" : "Switch hedging on");
  button.dataset.on = String(!switchedOn);
  page.hedging = switchedOn && !off;
  const budget = pool.budget?.requests;
  const delays = pool.replicas.map(({ hedge_delay_ms: ms }) => ms).filter((ms) => ms !== null && ms !== undefined).sort((a, b) => a - b);
  fillFigures(byId("hedging-figures"), off ? [] : [
    ["Hedges that the budget allows now", budget ? `${count(Math.floor(Math.max(0, budget.level)))} of ${count(Math.floor(budget.cap))}` : "–"],
    ["Share of requests that may be hedged", pool.budget?.share === undefined ? "–" : `${count(100 * pool.budget.share)} %`],
    ["A request is late after", delays.length ? milliseconds(delays[Math.floor(delays.length / 2)]) : "–"],
  ]);
}

function showProof(models) {
  const proof = models.find(({ model }) => model === page.model);
  byId("proof").hidden = !proof;
  if (!proof) return;
  setText(byId("proof-note"), proof.enough
    ? `Direct effect on ${count(proof.requests)} requests in ${count(proof.hours)} h; 95 % intervals in brackets.`
    : `Not enough data yet: ${proof.missing ?? ""}`);
  if (proof.bill) {
    const { cost, usual, saved, saved_share } = proof.bill;
    const range = `${count(saved.low)} to ${count(saved.high)}`;
    setText(byId("proof-note"), `Bill: ${count(cost)} instead of ${count(usual)} on the usual tier, ${count(100 * saved_share)} % saved (${range}). ${byId("proof-note").textContent}`);
  }
  const figures = [["p95", "p95_ms", milliseconds], ["p99", "p99_ms", milliseconds], ["Mean, cut at the limit", "mean_ms", milliseconds], [`Slower than ${milliseconds(proof.slo_ms)}`, "misses", count]];
  const shown = (part, form) => (part ? `${form(part.value)} (${form(part.low)} to ${form(part.high)})` : "–");
  fillTable(byId("proof-rows"), figures.filter(([, field]) => proof[field]).map(([name, field, form]) => [
    name, shown(proof[field].without, form), shown(proof[field].with, form), shown(proof[field].saved, form),
  ]), [1, 2, 3]);
}

function showUsage({ rows }) {
  const tokens = (part) => (part ? (part.prompt_tokens ?? 0) + (part.completion_tokens ?? 0) : 0);
  const parts = ["winner", "loser", "failed", "abandoned"];
  const listed = rows.map((row) => [
    row.key, count(row.requests), count(parts.reduce((sum, name) => sum + tokens(row[name]), 0)), count(tokens(row.loser)),
    parts.some((name) => row[name]?.cost !== undefined) ? count(parts.reduce((sum, name) => sum + (row[name]?.cost ?? 0), 0)) : "–",
  ]);
  fillTable(byId("who-rows"), listed.slice(0, 20), [1, 2, 3, 4]);
}

function showLoad(admission, { workers }) {
  const model = admission.models.find((each) => each.model === page.model);
  const queue = model ? `${count(model.in_flight)} of ${count(model.concurrency)} requests admitted, ${count(model.waiting)} waiting. ` : "";
  const bodies = `Request bodies hold ${count(admission.body_bytes / 1e6)} of ${count(admission.body_bytes_max / 1e6)} MB. `;
  const ready = workers.length ? `${workers.filter((worker) => worker.ready).length} of ${workers.length} workers are ready.` : "";
  setText(byId("load"), queue + bodies + ready);
}

function showHistory() {
  if (page.history?.model !== page.model) return;
  drawHistory(byId("history-plot"), page.history, page.hedging);
  const from = new Date(1000 * page.history.known_from_s).toLocaleString([], { dateStyle: "medium", timeStyle: "short", hour12: false });
  setText(byId("history-note"), `In windows of five minutes, since the gateway has counted (${from}); at most 24 hours. Point at a window for its numbers.`);
}

function draw() {
  showStatus();
  if (page.paused || document.hidden) return;
  const newest = samples.at(-1)?.at_s ?? 0;
  samples = samples.filter(({ at_s }) => at_s > newest - WINDOW_S).slice(-SAMPLES_MAX);
  const sorted = samples.map(({ ttft_s }) => ttft_s).sort((a, b) => a - b);
  const hedged = samples.filter(({ backup }) => backup).length;
  const marks = [["p50", 0.5], ["p95", 0.95], ["p99", 0.99]].map(([name, q]) => [name, quantile(sorted, q)]);
  fillFigures(byId("ttft-figures"), [...marks.map(([name, s]) => [name, seconds(s)]), ["Slowest", seconds(sorted.at(-1))], ["Answered", count(sorted.length)], ["Won by a hedge", count(hedged)]]);
  setText(byId("ttft-note"), sorted.length ? `Requests of the last ${WINDOW_S / 60} minutes that this page has seen.` : "No request since this page was opened.");
  drawRequests(byId("ttft-plot"), samples, marks.filter(([name]) => name !== "p95"), WINDOW_S);
  setText(byId("ttft-caption"), sorted.length ? "Each dot is a request. Blue: answered by the first replica; orange: won by a hedge." : "");
  byId("denials").hidden = !denials.size;
  fillTable(byId("denial-rows"), [...denials].sort((a, b) => b[1] - a[1]).map(([reason, n]) => [reason.replaceAll("_", " "), count(n)]), [1]);
  const every = byId("every").checked;
  const listed = races.filter(({ attempts }) => every || attempts.length > 1).slice(-RACES_MAX).reverse();
  setText(byId("races-note"), listed.length ? "" : noRace());
  const items = byId("races");
  if ([...items.children].map((item) => item.dataset.id).join() !== listed.map((ended) => ended.request_id).join()) {
    items.replaceChildren(...listed.map((ended) => {
      const item = raceItem(ended);
      item.dataset.id = ended.request_id;
      return item;
    }));
  }
}

function noRace() {
  if (page.described && !page.described.hedging_possible) return "No race can happen: a hedge needs a second replica that may take it.";
  return races.length ? "No race yet: one attempt was enough for each request." : "No request yet.";
}

// ---- what arrives

function onEvent(name, event) {
  if (name === "events_dropped") page.lost += event.events;
  if (page.paused || event.model !== page.model) return;
  if (name === "hedge_denied") denials.set(event.reason, (denials.get(event.reason) ?? 0) + 1);
  if (name !== "request_ended") return;
  if (event.ttft_s !== null) samples.push({ at_s: event.at_s, ttft_s: event.ttft_s, backup: event.result === "backup_won" });
  if (samples.length > 2 * SAMPLES_MAX) samples = samples.slice(-SAMPLES_MAX);
  // Races and single attempts are bounded apart, so that the many single ones do not push out the few races.
  const alike = races.filter(({ attempts }) => (attempts.length > 1) === (event.attempts.length > 1));
  if (alike.length >= RACES_MAX) races.splice(races.indexOf(alike[0]), 1);
  races.push(event);
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function readOften(every_ms, once) {
  for (;;) {
    if (!page.paused && !document.hidden) {
      try {
        await once();
        page.fault = null;
      } catch (error) {
        await explain(error);
      }
    }
    await pause(every_ms);
  }
}

async function explain(error) {
  page.fault = error instanceof Refused ? error.message : "The gateway does not answer; trying again";
  showStatus();
  if (error instanceof Refused && error.status === 401) await askKey();
}

let asking = null;

function askKey() {
  asking ??= new Promise((done) => {
    const dialog = byId("ask-key");
    dialog.addEventListener("close", () => {
      if (dialog.returnValue === "yes") keepKey(byId("key").value);
      byId("key").value = "";
      asking = null;
      done();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

async function followFeed() {
  let wait_ms = 1000;
  for (;;) {
    try {
      await follow(null, () => { wait_ms = 1000; }, onEvent);
    } catch (error) {
      await explain(error);
    }
    await pause(wait_ms);
    wait_ms = Math.min(2 * wait_ms, RETRY_MS_MAX);
  }
}

// ---- what can be done

let answered = null; // called with the answer to the open question
let closing = 0; // close events of earlier questions that are still to come

function confirmed(text, action) {
  const dialog = byId("confirm");
  setText(byId("confirm-text"), text);
  setText(byId("confirm-yes"), action);
  dialog.returnValue = "no";
  if (answered) { // closed, but its event is still to come
    answered(false);
    closing += 1;
  }
  dialog.showModal();
  return new Promise((done) => { answered = done; });
}

byId("confirm").addEventListener("close", ({ target }) => {
  if (closing > 0) {
    closing -= 1;
    return;
  }
  answered?.(target.returnValue === "yes");
  answered = null;
});

async function act(text, action, path, body) {
  if (!(await confirmed(text, action))) return;
  try {
    await change(path, body);
    await readModel();
  } catch (error) {
    await explain(error);
  }
}

byId("hedging-switch").addEventListener("click", ({ currentTarget }) => {
  const on = currentTarget.dataset.on === "true";
  const text = on ? `Requests of ${page.model} may be hedged again.` : `Late requests of ${page.model} will wait for their replica. Running hedges continue.`;
  act(text, currentTarget.textContent, "admin/hedging", { on, model: page.model });
});

byId("replica-rows").addEventListener("click", ({ target }) => {
  if (!target.dataset.replica) return;
  const { replica } = target.dataset;
  const out = target.dataset.out === "true";
  const text = out ? `${replica} gets no new requests of ${page.model}. Streams under way continue.` : `${replica} gets requests of ${page.model} again, a small share at first.`;
  act(text, `${out ? "Take out" : "Take in"} ${replica}`, "admin/replicas", { replica, out, model: page.model });
});

byId("all-replicas").addEventListener("click", () => {
  page.allReplicas = !page.allReplicas;
  showModel(page.described);
});

addEventListener("resize", showHistory);

byId("model").addEventListener("change", ({ target }) => {
  choose(target.value);
  readModel().catch(explain);
  readHistory().catch(explain);
});

byId("pause").addEventListener("click", ({ currentTarget }) => {
  page.paused = !page.paused;
  currentTarget.setAttribute("aria-pressed", String(page.paused));
  showStatus();
});

async function readModel() {
  const model = page.model;
  const described = await read(`admin/models/${encodeURIComponent(model)}`);
  if (model === page.model) showModel(described);
}

async function readHistory() {
  page.history = await read(`admin/history/${encodeURIComponent(page.model)}`);
  showHistory();
}

readOften(READ_MS, async () => {
  page.health = await read("admin/health");
  showVerdict(page.health);
  showModels((await read("admin/models")).models);
  if (page.model) await readModel();
});
readOften(SLOW_MS, async () => {
  while (!page.model) await pause(200);
  const model = `model=${encodeURIComponent(page.model)}`;
  showUsage(await read(`admin/usage?${model}`));
  showProof((await read("admin/proof")).models);
  showLoad(await read("admin/admission"), await read("admin/workers"));
  await readHistory();
});
followFeed();
setInterval(draw, DRAW_MS);
