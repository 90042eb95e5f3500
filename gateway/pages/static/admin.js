// Requests to the admin address: JSON, switches, and the event feed. A key, if one is needed, is kept for this tab only.

const KEY = "ttft-gateway-admin-key";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const keepKey = (key) => sessionStorage.setItem(KEY, key);

async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, body.error?.message ?? `${path} answered ${answer.status}`);
}

export const read = async (path) => (await ask(path, { signal: AbortSignal.timeout(10000) })).json();

export async function change(path, body) {
  return (await ask(path, { method: "POST", body: JSON.stringify(body), signal: AbortSignal.timeout(10000) })).json();
}

// Call onEvent(name, data) for every event until the feed ends or the signal aborts.
export async function follow(signal, onOpen, onEvent) {
  const answer = await ask("admin/events", { signal });
  onOpen();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\r\n\r\n");
    rest = parts.pop();
    for (const part of parts) {
      const [, name, data] = /^event: (.*)\r\ndata: (.*)$/.exec(part) ?? [];
      if (name) onEvent(name, JSON.parse(data));
    }
  }
}
