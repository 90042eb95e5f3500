// The `openai` package as a client of the gateway. Runs in an environment of its own; see matrix.py.

import assert from "node:assert/strict";

import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

import { check, impatient, isWeather, left, PARAMETERS, PROMPT, run, scene, thrown, TOOL } from "./reporting.mjs";

const client = new OpenAI({ baseURL: `${scene.gateway}/v1`, apiKey: scene.key, maxRetries: 0 });
const messages = [{ role: "user", content: PROMPT }];
const tools = [{ type: "function", function: { name: TOOL, parameters: PARAMETERS } }];
const responseTools = [{ type: "function", name: TOOL, parameters: PARAMETERS, strict: true }];
const Weather = z.object({ town: z.string(), days: z.number().int() });
const ENDS = ["stop", "length"]; // Anthropic must be given a bound, which simulated replicas use up

const chat = (more = {}, options = {}) =>
  client.chat.completions.create({ model: "fast", messages, temperature: 0, ...more }, options);

async function read(stream) {
  const chunks = [];
  for await (const chunk of await stream) chunks.push(chunk);
  return chunks;
}

check("answer", null, async () => {
  const told = await chat();
  assert.ok(told.choices[0].message.content);
  assert.ok(ENDS.includes(told.choices[0].finish_reason));
  assert.ok(told.usage.completion_tokens > 0);
});

check("stream", null, async () => {
  const chunks = await read(chat({ stream: true, stream_options: { include_usage: true } }));
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, (await chat()).choices[0].message.content);
  assert.ok(chunks.at(-1).usage.completion_tokens > 0);
});

check("tools", null, async () => {
  const told = (await chat({ tools, tool_choice: "required" })).choices[0];
  assert.equal(told.finish_reason, "tool_calls");
  isWeather(told.message.tool_calls[0].function.arguments);
});

check("streamed tools", null, async () => {
  const stream = client.chat.completions.stream({ model: "fast", messages, tools, tool_choice: "required" });
  isWeather((await stream.finalMessage()).tool_calls[0].function.arguments);
});

check("tool result", null, async () => {
  const { message } = (await chat({ tools, tool_choice: "required" })).choices[0];
  const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: "rain" };
  assert.ok((await chat({ messages: [...messages, message, result], tools })).choices[0].message.content);
});

check("structured output", null, async () => {
  const response_format = zodResponseFormat(Weather, "weather");
  const told = await client.chat.completions.parse({ model: "fast", messages, response_format });
  isWeather(told.choices[0].message.parsed);
});

check("streamed structured output", null, async () => {
  const response_format = zodResponseFormat(Weather, "weather");
  const stream = client.chat.completions.stream({ model: "fast", messages, response_format });
  isWeather((await stream.finalChatCompletion()).choices[0].message.parsed);
});

check("responses", null, async () => {
  assert.ok((await client.responses.create({ model: "fast", input: PROMPT, store: false })).output_text);
  const text = { format: zodTextFormat(Weather, "weather") };
  isWeather((await client.responses.parse({ model: "fast", input: PROMPT, text })).output_parsed);
});

check("streamed responses", null, async () => {
  const text = { format: zodTextFormat(Weather, "weather") };
  const stream = client.responses.stream({ model: "fast", input: PROMPT, text });
  isWeather((await stream.finalResponse()).output_parsed);
});

check("responses with tools", null, async () => {
  const given = { model: "fast", tools: responseTools };
  const told = await client.responses.create({ ...given, input: PROMPT, tool_choice: "required" });
  const call = told.output.at(-1);
  isWeather(call.arguments);
  const result = { type: "function_call_output", call_id: call.call_id, output: "rain" };
  assert.ok((await client.responses.create({ ...given, input: [...messages, call, result] })).output_text);
});

check("completions", ["openai"], async () => {
  const given = { model: "fast", prompt: PROMPT, temperature: 0 };
  const text = (await read(client.completions.create({ ...given, stream: true }))).map((one) => one.choices[0].text);
  assert.equal(text.join(""), (await client.completions.create(given)).choices[0].text);
});

check("embeddings", ["openai"], async () => {
  const given = { model: "fast", input: [PROMPT, "and lakes"] };
  const packed = (await client.embeddings.create(given)).data; // base64 on the wire
  const plain = (await client.embeddings.create({ ...given, encoding_format: "float" })).data;
  assert.equal(packed.length, 2);
  plain[1].embedding.forEach((value, place) => assert.ok(Math.abs(value - packed[1].embedding[place]) < 1e-6));
});

check("models", null, async () => {
  assert.ok((await read(client.models.list())).some((model) => model.id === "fast"));
  assert.equal((await client.models.retrieve("fast")).id, "fast");
});

check("cancel while waiting", null, () => left("silent", () => impatient((signal) => chat({ model: "silent" }, { signal }))));

check("cancel a stream", null, () =>
  left("endless", async () => {
    for await (const chunk of await chat({ model: "endless", stream: true })) {
      assert.ok(chunk);
      break;
    }
  }),
);

const stranger = client.withOptions({ apiKey: "sk-wrong" });
check("wrong key", null, () =>
  thrown(() => stranger.chat.completions.create({ model: "fast", messages }), "AuthenticationError", 401),
);
check("unknown model", null, () => thrown(() => chat({ model: "no-such-model" }), "NotFoundError", 404));
check("refused request", null, () => thrown(() => chat({ model: "refusing" }), "BadRequestError", 400));
check("rate limit", null, () => thrown(() => chat({ model: "limited", stream: true }), "RateLimitError", 429));
check("failing replica", null, () => thrown(() => chat({ model: "failing", stream: true }), "InternalServerError", 500));
check("cut stream", null, () => thrown(() => read(chat({ model: "cut", stream: true })), "APIError", null));

await run();
