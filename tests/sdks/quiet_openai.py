"""The `openai` package reads one stream in a long silence; scripts/acceptance silence runs it.

Runs in the environment of client_openai.py. The argument is JSON: base URLs, API, models, prompt.
"""

import json
import sys
from typing import Any

import openai

asked: dict[str, str] = json.loads(sys.argv[1])


def chat(url: str, model: str) -> tuple[str, str, str | None]:
    """Return reasoning, text and finish reason of a streamed chat completion."""
    messages: Any = [{"role": "user", "content": asked["prompt"]}]
    client = openai.OpenAI(base_url=url + "/v1", api_key=asked["key"])
    reasoning = text = ""
    finish = None
    for chunk in client.chat.completions.create(model=model, messages=messages, temperature=0, stream=True):
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return reasoning, text, finish


def responses(url: str, model: str) -> tuple[str, str, str | None]:
    """Return the same of a streamed response."""
    client = openai.OpenAI(base_url=url + "/v1", api_key=asked["key"])
    reasoning, final = "", None
    for event in client.responses.create(model=model, input=asked["prompt"], temperature=0, stream=True):
        if event.type == "response.reasoning_text.delta":
            reasoning += event.delta
        if event.type in {"response.completed", "response.incomplete"}:  # incomplete: the bound of tokens was reached
            final = event.response
    return (reasoning, final.output_text, final.status) if final is not None else (reasoning, "", None)


ask = {"chat": chat, "responses": responses}[asked["api"]]
read = {"whole": ask(asked["url"], asked["whole"]), "quiet": ask(asked["relay"], asked["quiet"])}
print(json.dumps(read))
