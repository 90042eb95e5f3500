"""Translates the turns of a request to Anthropic's Messages API to the messages of a chat completion.

A user's turn with tool results becomes one `tool` message for each result, then a `user` message with the other blocks.
A tool's images are put into that user message, because `tool` messages hold text only; a failed tool's text begins with
"Error: ". Thinking is sent only to servers that have a field for it. Blocks of Anthropic's own tools are rejected.

Other parameters are translated in translation.py. Sans-I/O.
"""

from collections.abc import Iterable

from ttft_gateway.apis.json_fields import FieldReader, compact, require_list, unsupported_field
from ttft_gateway.apis.tolerant_json import dumps

Json = dict[str, object]

_PDF = "application/pdf"


def messages_of(request: FieldReader, reasoning: str | None) -> list[Json]:
    """Return the chat messages of the request's `messages`; `reasoning` is `Dialect.reasoning`."""
    messages: list[Json] = []
    for number, turn in enumerate(request.require("messages", list)):
        item = request.nested(turn, f"messages[{number}]")
        role = item.require("role", str)
        content = item.take("content")
        if role == "system":
            messages.append({"role": "system", "content": compact(content_of(item, "content", content))})
        elif role == "user":
            messages += _user(item, content)
        elif role == "assistant":
            messages.append(_assistant(item, content, reasoning))
        else:
            raise unsupported_field(item.path_of("role"), f"is {role[:20]!r}; send user, assistant or system")
        item.close()
    return messages


def content_of(item: FieldReader, key: str, content: object) -> list[Json]:
    """Return the parts of a content, a string or blocks of text, images and documents."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    blocks = require_list(content, item.path_of(key))
    return [_part(item.nested(block, f"{key}[{number}]")) for number, block in enumerate(blocks)]


def _part(block: FieldReader) -> Json:
    kind = block.require("type", str)
    part: Json
    if kind == "text":
        part = {"type": "text", "text": block.require("text", str)}
        block.ignore("citations")  # of an earlier answer
    elif kind == "image":
        part = {
            "type": "image_url",
            "image_url": {"url": _image(block.nested(block.require("source", dict), "source"))},
        }
    elif kind == "document":
        part = _document(block)
    else:
        raise unsupported_field(
            block.path_of("type"), f"a block of the type {kind[:40]!r} has no counterpart in chat completions"
        )
    block.ignore("cache_control")
    block.close()
    return part


def _image(source: FieldReader) -> str:
    kind = source.require("type", str)
    if kind == "url":
        url = source.require("url", str)
    elif kind == "base64":
        url = f"data:{source.require('media_type', str)};base64,{source.require('data', str)}"
    else:
        raise unsupported_field(source.path_of("type"), f"is {kind[:20]!r}; send the image as base64 or url")
    source.close()
    return url


def _document(block: FieldReader) -> Json:
    """A PDF as a file, a plain text as text with its title and context above it."""
    title, context = block.take_as("title", str), block.take_as("context", str)
    citations = block.take("citations")
    if citations not in (None, {"enabled": False}):
        block.mark_unsupported("citations")
    source = block.nested(block.require("source", dict), "source")
    kind = source.require("type", str)
    if kind == "text":
        source.accept_only("media_type", "text/plain")
        text = "\n".join(each for each in (title, context, source.require("data", str)) if each)
        source.close()
        return {"type": "text", "text": text}
    if kind != "base64" or source.take("media_type") != _PDF:
        raise unsupported_field(source.path_of("type"), "is not supported; send a PDF in base64, or plain text")
    if context:
        block.mark_unsupported("context")
    data = f"data:{_PDF};base64,{source.require('data', str)}"
    source.close()
    return {"type": "file", "file": {"file_data": data, "filename": title or "document.pdf"}}


def _user(item: FieldReader, content: object) -> Iterable[Json]:
    """Tool results first: chat completions require them just after their calls."""
    results: list[Json] = []
    parts: list[Json] = []
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    for number, value in enumerate(require_list(content, item.path_of("content"))):
        block = item.nested(value, f"content[{number}]")
        if isinstance(value, dict) and value.get("type") == "tool_result":
            result, images = _result(block)
            results.append(result)
            parts += images
        else:
            parts.append(_part(block))
    if parts or not results:
        results.append({"role": "user", "content": compact(parts)})
    return results


def _result(block: FieldReader) -> tuple[Json, list[Json]]:
    """A tool's result: the message, and the images that follow it."""
    content = block.take("content")
    parts = content_of(block, "content", content) if content is not None else []
    texts = [part for part in parts if part["type"] == "text"]
    if block.take_as("is_error", bool):
        marked = f"Error: {texts[0]['text'] if len(texts) == 1 else ''}"
        texts = [{"type": "text", "text": marked}, *(texts if len(texts) != 1 else ())]
    message: Json = {
        "role": "tool",
        "tool_call_id": block.require("tool_use_id", str),
        "content": compact(texts) if texts else "",
    }
    block.ignore("type", "cache_control")
    block.close()
    return message, [part for part in parts if part["type"] != "text"]


def _assistant(item: FieldReader, content: object, reasoning: str | None) -> Json:
    """An assistant's turn: its texts joined, its tool calls, and its thinking if the server has a field for it."""
    texts, thoughts, calls = [], [], []
    if isinstance(content, str):
        texts.append(content)
        content = []
    for number, value in enumerate(require_list(content, item.path_of("content"))):
        block = item.nested(value, f"content[{number}]")
        kind = block.require("type", str)
        if kind == "text":
            texts.append(block.require("text", str))
            block.ignore("citations")
        elif kind == "thinking":
            thoughts.append(block.require("thinking", str))
            block.ignore("signature")
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind == "redacted_thinking":
            block.ignore("data")  # only Anthropic can decrypt it
        else:
            raise unsupported_field(
                block.path_of("type"), f"a block of the type {kind[:40]!r} has no counterpart in chat completions"
            )
        block.ignore("cache_control")
        block.close()
    message: Json = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if reasoning is not None and any(thoughts):
        message[reasoning] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: FieldReader) -> Json:
    arguments = dumps(block.require("input", dict)).decode()
    block.accept_only("caller", {"type": "direct"})
    return {
        "id": block.require("id", str),
        "type": "function",
        "function": {"name": block.require("name", str), "arguments": arguments},
    }
