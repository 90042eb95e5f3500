// What the Node clients of the matrix share: where the gateway is, their checks, and a JSON line for each on stdout.
// The same as reporting.py, which says more. Units: milliseconds.

import assert from "node:assert/strict";

export const PROMPT = "Say something about rivers.";
export const TOOL = "weather";
export const PARAMETERS = {
  type: "object",
  properties: { town: { type: "string" }, days: { type: "integer" } },
  required: ["town", "days"],
  additionalProperties: false,
};
export const scene = JSON.parse(process.argv[2]);

const HASTY_MS = 500;
const CLOSED_MS_MAX = 5000;
const POLL_MS = 20;
const FOUND_MAX = 400;
const checks = [];

export function check(name, upstreams, run) {
  if (upstreams === null || upstreams.includes(scene.upstream)) checks.push([name, run]);
}

export async function run() {
  for (const [name, make] of checks) {
    let line;
    try {
      line = { check: name, ok: true, said: (await make()) ?? "" };
    } catch (error) {
      console.error(error);
      line = { check: name, ok: false, said: `${error?.constructor?.name}: ${error?.message}`.slice(0, FOUND_MAX) };
    }
    console.log(JSON.stringify(line));
  }
}

// The class of what a call throws, which must be this one with this status (null: it need not have one).
export async function thrown(call, name, status) {
  let found = null;
  try {
    await call();
  } catch (error) {
    found = error;
  }
  assert.ok(found, `no ${name} was thrown`);
  const told = found.name === "Error" ? found.constructor.name : found.name;
  assert.equal(told, name, `${told}, not ${name}: ${found.message}`);
  if (status !== null) assert.equal(found.status ?? found.statusCode, status);
  return told;
}

// A client leaves, and the model's only replica must see its connection closed.
export async function left(model, leave) {
  const before = await cancelled(model);
  await leave();
  for (let waited = 0; waited < CLOSED_MS_MAX; waited += POLL_MS) {
    if ((await cancelled(model)) > before) return;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  assert.fail(`the replica still answers ${CLOSED_MS_MAX} ms after the client left`);
}

// A call that its caller aborts before the first token.
export async function impatient(call) {
  const patience = new AbortController();
  setTimeout(() => patience.abort(), HASTY_MS);
  await assert.rejects(call(patience.signal));
}

// The arguments of a tool's call, or a structured answer, fit PARAMETERS.
export function isWeather(args) {
  const given = typeof args === "string" ? JSON.parse(args) : args;
  assert.deepEqual(Object.keys(given).sort(), ["days", "town"]);
  assert.equal(typeof given.town, "string");
  assert.ok(Number.isInteger(given.days));
}

async function cancelled(model) {
  return (await (await fetch(scene.stats[model])).json()).cancelled;
}
