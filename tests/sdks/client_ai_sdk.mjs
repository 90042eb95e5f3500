// The Vercel AI SDK (`ai`) as a client of the gateway, with its provider for any compatible server and, for the Responses
// API, the one for OpenAI. Runs in an environment of its own; see matrix.py.

import assert from "node:assert/strict";

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

import { check, impatient, isWeather, left, PARAMETERS, PROMPT, run, scene, thrown, TOOL } from "./reporting.mjs";

const reached = { baseURL: `${scene.gateway}/v1`, apiKey: scene.key };
const compatible = createOpenAICompatible({
  name: "gateway",
  includeUsage: true,
  supportsStructuredOutputs: true,
  ...reached,
});
const openai = createOpenAI(reached);
const stranger = createOpenAICompatible({ name: "gateway", ...reached, apiKey: "sk-wrong" });
const Weather = z.object({ town: z.string(), days: z.number().int() });

const to = (model) => ({ model: compatible(model), prompt: PROMPT, temperature: 0, maxRetries: 0 });
const responding = () => ({ model: openai.responses("fast"), prompt: PROMPT, maxRetries: 0 });
const tools = { [TOOL]: tool({ inputSchema: jsonSchema(PARAMETERS) }) };
const toolsThatRun = { [TOOL]: tool({ inputSchema: jsonSchema(PARAMETERS), execute: async () => "rain" }) };
const firstCalls = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "auto" });

// Errors come as a part of the stream and through this callback; the text just ends.
async function read(given) {
  let failure = null;
  const stream = streamText({ ...given, onError: ({ error }) => (failure = error) });
  let text = "";
  for await (const piece of stream.textStream) text += piece;
  if (failure !== null) throw failure;
  return { text, usage: await stream.usage, calls: await stream.toolCalls };
}

check("answer", null, async () => {
  const told = await generateText(to("fast"));
  assert.ok(told.text);
  assert.ok(["stop", "length"].includes(told.finishReason));
  assert.ok(told.usage.outputTokens > 0);
});

check("stream", null, async () => {
  const { text, usage } = await read(to("fast"));
  assert.equal(text, (await generateText(to("fast"))).text);
  assert.ok(usage.outputTokens > 0);
});

check("tools", null, async () => {
  const told = await generateText({ ...to("fast"), tools, toolChoice: "required" });
  assert.equal(told.finishReason, "tool-calls");
  isWeather(told.toolCalls[0].input);
});

check("streamed tools", null, async () => {
  const { calls } = await read({ ...to("fast"), tools, toolChoice: { type: "tool", toolName: TOOL } });
  isWeather(calls[0].input);
});

check("tool result", null, async () => {
  const given = { ...to("fast"), tools: toolsThatRun, prepareStep: firstCalls, stopWhen: stepCountIs(2) };
  const told = await generateText(given);
  assert.equal(told.steps.length, 2);
  assert.ok(told.text);
});

check("structured output", null, async () => {
  isWeather((await generateText({ ...to("fast"), output: Output.object({ schema: Weather }) })).output);
});

check("streamed structured output", null, async () => {
  const stream = streamText({ ...to("fast"), output: Output.object({ schema: Weather }) });
  let last = null;
  for await (const partial of stream.partialOutputStream) last = partial;
  isWeather(last);
});

check("responses", null, async () => {
  assert.ok((await generateText(responding())).text);
  isWeather((await generateText({ ...responding(), output: Output.object({ schema: Weather }) })).output);
});

check("streamed responses", null, async () => {
  const { text, usage } = await read(responding());
  assert.ok(text);
  assert.ok(usage.outputTokens > 0);
});

check("responses with tools", null, async () => {
  isWeather((await generateText({ ...responding(), tools, toolChoice: "required" })).toolCalls[0].input);
  const options = { providerOptions: { openai: { store: false } } };
  const given = { ...responding(), ...options, tools: toolsThatRun, prepareStep: firstCalls, stopWhen: stepCountIs(2) };
  assert.ok((await generateText(given)).text);
});

check("completions", ["openai"], async () => {
  const model = compatible.completionModel("fast");
  assert.equal((await read({ ...to("fast"), model })).text, (await generateText({ ...to("fast"), model })).text);
});

check("embeddings", ["openai"], async () => {
  const model = compatible.embeddingModel("fast");
  const { embeddings } = await embedMany({ model, values: [PROMPT, "and lakes"], maxRetries: 0 });
  assert.equal(embeddings.length, 2);
  assert.notDeepEqual(embeddings[0], embeddings[1]);
});

check("cancel while waiting", null, () =>
  left("silent", () => impatient((abortSignal) => generateText({ ...to("silent"), abortSignal }))),
);

check("cancel a stream", null, () =>
  left("endless", async () => {
    const leaving = new AbortController();
    for await (const piece of streamText({ ...to("endless"), abortSignal: leaving.signal }).textStream) {
      assert.ok(piece);
      leaving.abort();
      break;
    }
  }),
);

check("wrong key", null, () =>
  thrown(() => generateText({ ...to("fast"), model: stranger("fast") }), "AI_APICallError", 401),
);
check("unknown model", null, () => thrown(() => generateText(to("no-such-model")), "AI_APICallError", 404));
check("refused request", null, () => thrown(() => generateText(to("refusing")), "AI_APICallError", 400));
check("rate limit", null, () => thrown(() => read(to("limited")), "AI_APICallError", 429));
check("failing replica", null, () => thrown(() => read(to("failing")), "AI_APICallError", 500));
check("cut stream", null, async () => {
  try {
    await read(to("cut"));
  } catch (error) {
    return error.constructor.name === "Object" ? "an error part" : (error.name ?? typeof error);
  }
  assert.fail("the stream ended as if it were whole");
});

await run();
