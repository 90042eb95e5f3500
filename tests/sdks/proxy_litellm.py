"""Starts LiteLLM's proxy in front of the gateway, as docs/guides/with-litellm.md has it, and asks it a question.

Prints the answer: the model calls a tool, and gets its result in a second request. Standard library only; runs in an
environment of its own. Arguments: the gateway's address, the key, the model, and the question. Units: seconds.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

START_S_MAX = 120.0
POLL_S = 0.2
MASTER_KEY = "sk-" + "0123456789abcdef" * 2  # LiteLLM does not start without a key
TOOL = {
    "name": "Read",
    "parameters": {"type": "object", "properties": {"file_path": {"type": "string"}}, "required": ["file_path"]},
}


def config(url: str, model: str) -> str:
    """Return LiteLLM's configuration."""
    return f"""model_list:
  - model_name: {model}
    litellm_params:
      model: openai/{model}
      api_base: {url}/v1
      api_key: os.environ/TTFT_GATEWAY_KEY
"""


def unused_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def asked(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the message of a streamed chat completion."""
    data = json.dumps({**body, "stream": True}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {MASTER_KEY}"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", data, headers)
    text = ""
    calls: list[Any] = []
    with urllib.request.urlopen(request, timeout=START_S_MAX) as response:
        for line in response:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
                    calls += choice["delta"].get("tool_calls") or []
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        called = {"name": calls[0]["function"]["name"], "arguments": ""}
        called["arguments"] = "".join(call["function"].get("arguments") or "" for call in calls)
        message["tool_calls"] = [{"id": calls[0]["id"], "type": "function", "function": called}]
    return message


def ready(url: str, proxy: "subprocess.Popen[bytes]") -> None:
    """Wait until the proxy answers."""
    pause = threading.Event()
    for _ in range(round(START_S_MAX / POLL_S)):
        if proxy.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{url}/health/liveliness", timeout=POLL_S * 5).close()
        except OSError:
            pause.wait(POLL_S)
        else:
            return
    raise TimeoutError("LiteLLM's proxy did not start")


def main() -> None:
    """Ask the question."""
    gateway, key, model, question = sys.argv[1:]
    Path("litellm.yaml").write_text(config(gateway, model), encoding="utf-8")
    url = f"http://127.0.0.1:{(port := unused_port())}"
    command = [str(Path(sys.executable).parent / "litellm"), "--config", "litellm.yaml", "--host", "127.0.0.1"]
    own = {"TTFT_GATEWAY_KEY": key, "LITELLM_MASTER_KEY": MASTER_KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with (
        Path("litellm.log").open("wb") as log,
        subprocess.Popen([*command, "--port", str(port)], env={**os.environ, **own}, stdout=log, stderr=log) as proxy,
    ):
        try:
            ready(url, proxy)
            body: dict[str, Any] = {"model": model, "tools": [{"type": "function", "function": TOOL}]}
            messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
            message = asked(url, {**body, "messages": messages})
            call = message["tool_calls"][0]
            content = Path(json.loads(call["function"]["arguments"])["file_path"]).read_text(encoding="utf-8")
            result = {"role": "tool", "tool_call_id": call["id"], "content": content}
            print(asked(url, {**body, "messages": [*messages, message, result]})["content"])
        finally:
            proxy.terminate()


if __name__ == "__main__":
    main()
