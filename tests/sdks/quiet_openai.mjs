// The `openai` package for Node reads one stream in a long silence; scripts/acceptance silence runs it.
// Runs in the environment of client_openai.mjs. The argument is JSON: base URLs, API, models, prompt.

import OpenAI from "openai";

const asked = JSON.parse(process.argv[2]);

// Reasoning, text and finish reason of a streamed chat completion.
async function chat(client, model) {
  const messages = [{ role: "user", content: asked.prompt }];
  let [reasoning, text, finish] = ["", "", null];
  for await (const chunk of await client.chat.completions.create({ model, messages, temperature: 0, stream: true })) {
    for (const choice of chunk.choices) {
      reasoning += choice.delta.reasoning_content ?? "";
      text += choice.delta.content ?? "";
      finish = choice.finish_reason ?? finish;
    }
  }
  return [reasoning, text, finish];
}

// The same of a streamed response.
async function responses(client, model) {
  const stream = client.responses.stream({ model, input: asked.prompt, temperature: 0 });
  let reasoning = "";
  for await (const event of stream) {
    if (event.type.startsWith("response.reasoning") && event.type.endsWith("delta")) reasoning += event.delta;
  }
  const final = await stream.finalResponse();
  return [reasoning, final.output_text, final.status];
}

async function ask(url, model) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: asked.key });
  return (asked.api === "chat" ? chat : responses)(client, model);
}

const whole = await ask(asked.url, asked.whole);
console.log(JSON.stringify({ whole, quiet: await ask(asked.relay, asked.quiet) }));
