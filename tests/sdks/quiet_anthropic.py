"""The `anthropic` package reads one stream in a long silence; scripts/acceptance silence runs it.

Runs in the environment of client_anthropic.py. The argument is JSON: base URLs, models, prompt.
"""

import json
import sys
from typing import Any

import anthropic

asked: dict[str, str] = json.loads(sys.argv[1])


def ask(url: str, model: str) -> tuple[str, str, str | None]:
    """Return reasoning, text and stop reason of a streamed message."""
    messages: Any = [{"role": "user", "content": asked["prompt"]}]
    client = anthropic.Anthropic(base_url=url, api_key=asked["key"])
    with client.messages.stream(model=model, max_tokens=20, messages=messages, extra_body={"temperature": 0}) as stream:
        final: Any = stream.get_final_message()
    reasoning = "".join(block.thinking for block in final.content if block.type == "thinking")
    return reasoning, "".join(block.text for block in final.content if block.type == "text"), final.stop_reason


read = {"whole": ask(asked["url"], asked["whole"]), "quiet": ask(asked["relay"], asked["quiet"])}
print(json.dumps(read))
