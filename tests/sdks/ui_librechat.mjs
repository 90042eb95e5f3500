// Makes the model calls of LibreChat with its own package, and prints the answers: the list of models (fetchModels in
// packages/api/src/endpoints/models.ts), a chat with a tool (Run.processStream), the title (Run.generateTitle), and a chat
// that the user stops. Arguments: the gateway's address, the key, the model and the folder of the file.

import { readFile } from "node:fs/promises";

import { GraphEvents, Providers, Run } from "@librechat/agents";
import { tool } from "@langchain/core/tools";
import { HumanMessage } from "@langchain/core/messages";

const [url, key, model, prompt] = process.argv.slice(2);
const llmConfig = {
  provider: Providers.OPENAI,
  model,
  apiKey: key,
  streaming: true,
  streamUsage: true,
  configuration: { baseURL: `${url}/v1` },
};
const parameters = { type: "object", properties: { file_path: { type: "string" } }, required: ["file_path"] };
const read = tool(async ({ file_path }) => readFile(file_path, "utf8"), {
  name: "Read",
  description: "Reads a file.",
  schema: parameters,
});

async function chat(runId, signal, tools) {
  const texts = [];
  const customHandlers = {
    [GraphEvents.ON_MESSAGE_DELTA]: { handle: (_event, data) => texts.push(data.delta.content?.[0]?.text ?? "") },
  };
  const graphConfig = { type: "standard", llmConfig, tools, instructions: "Be brief.", signal };
  const run = await Run.create({ runId, graphConfig, customHandlers, returnContent: true, skipCleanup: true });
  const config = { configurable: { thread_id: runId, user_id: "u" }, streamMode: "values", version: "v2", signal };
  const contentParts = await run.processStream({ messages: [new HumanMessage(prompt)] }, config);
  return { run, contentParts, text: texts.join("") };
}

const models = await fetch(`${url}/v1/models`, { headers: { authorization: `Bearer ${key}` } });
console.log((await models.json()).data.map((row) => row.id).join(" "));

const { run, contentParts, text } = await chat("run-1", undefined, [read]);
console.log(text);

const title = await run.generateTitle({
  provider: Providers.OPENAI,
  clientOptions: { ...llmConfig, streaming: false },
  inputText: prompt,
  contentParts,
  chainOptions: { configurable: { thread_id: "run-1", user_id: "u" } },
});
console.log(JSON.stringify(title));
process.exit(0);
