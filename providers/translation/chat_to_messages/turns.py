"""Translates the messages of a chat completion to the system prompt and turns of Anthropic's Messages API.

Leading system and developer messages become the system prompt; later ones keep their place, as `role: system`, which
newer models accept and older ones reject. Tool results belong to the user's turn there, so the results of one
round are merged, with the user's next message. Content without a counterpart (audio, files of another provider, a
participant's name) is rejected.

Other parameters are translated in translation.py. Sans-I/O.
"""

import hashlib
import re

from ttft_gateway.apis.json_fields import FieldReader, compact, invalid_type, require_list, unsupported_field
from ttft_gateway.apis.tolerant_json import loads

Block = dict[str, object]
Turn = dict[str, object]

_data_url = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,", re.ASCII).match
_tool_id = re.compile(r"[a-zA-Z0-9_-]+").fullmatch  # ids that the API accepts
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_PDF = "application/pdf"
# The API accepts the reasoning of earlier turns as signed blocks only; these fields are output and have no effect.
_OUTPUT_ONLY = ("annotations", "provider_specific_fields", "reasoning", "reasoning_content", "reasoning_details")


def turns_of(request: FieldReader) -> tuple[list[Block], list[Turn]]:
    """Return the system prompt's blocks and the turns of the request's `messages`."""
    system: list[Block] = []
    turns: list[Turn] = []
    for number, message in enumerate(request.require("messages", list)):
        item = request.nested(message, f"messages[{number}]")
        role = item.require("role", str)
        if role in ("system", "developer"):
            blocks = _blocks(item)
            if turns:
                turns.append({"role": "system", "content": blocks})
            else:
                system += blocks
        elif role == "user":
            _add_user(turns, _blocks(item))
        elif role == "assistant":
            turns.append({"role": "assistant", "content": _assistant(item)})
        elif role == "tool":
            _add_user(turns, [_result(item)])
        else:
            raise unsupported_field(item.path_of("role"), f"is {role[:20]!r}, which the Messages API does not support")
        item.close()
    for turn in turns:
        turn["content"] = compact(_as_blocks(turn))
    return system, turns


def _as_blocks(turn: Turn) -> list[Block]:
    blocks = turn["content"]
    assert isinstance(blocks, list)
    return blocks


def _add_user(turns: list[Turn], blocks: list[Block]) -> None:
    """Merge tool results, and the user's message after them, into one turn; other turns stay separate."""
    last = turns[-1] if turns and turns[-1]["role"] == "user" else None
    if last is not None and any(block["type"] == "tool_result" for block in _as_blocks(last)[-1:]):
        last["content"] = [*_as_blocks(last), *blocks]
    else:
        turns.append({"role": "user", "content": blocks})


def _blocks(item: FieldReader) -> list[Block]:
    content = item.take("content")
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts = require_list(content, item.path_of("content"))
    return [_part(item.nested(part, f"content[{number}]")) for number, part in enumerate(parts)]


def _part(part: FieldReader) -> Block:
    kind = part.require("type", str)
    block: Block
    if kind in ("text", "refusal"):
        block = {"type": "text", "text": part.require(kind, str)}
    elif kind == "image_url":
        image = part.nested(part.require("image_url", dict), "image_url")
        block = {"type": "image", "source": _image(image.require("url", str), image.path_of("url"))}
        image.accept_only("detail", "auto", "high", "original")  # the API has no option to scale images down
        image.close()
    elif kind == "file":
        block = _document(part.nested(part.require("file", dict), "file"))
    else:
        raise unsupported_field(part.path_of("type"), f"is {kind[:20]!r}, which the Messages API does not support")
    cache = part.take("cache_control")
    if cache is not None:
        block["cache_control"] = cache
    part.close()
    return block


def _image(url: str, path: str) -> Block:
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    media, data = _data(url, path)
    if media not in _IMAGES:
        raise unsupported_field(path, f"is of type {media[:30]!r}; send a JPEG, PNG, GIF or WebP image")
    return {"type": "base64", "media_type": media, "data": data}


def _document(file: FieldReader) -> Block:
    """A PDF inside the request; files stored at another provider are rejected."""
    data = file.take_as("file_data", str)
    if data is None:
        raise unsupported_field(
            file.path_of("file_id"), "the file is stored at another provider; send its data as `file_data`"
        )
    media, encoded = _data(data, file.path_of("file_data"))
    if media != _PDF:
        raise unsupported_field(file.path_of("file_data"), f"is of type {media[:30]!r}; send a PDF")
    block: Block = {"type": "document", "source": {"type": "base64", "media_type": media, "data": encoded}}
    name = file.take_as("filename", str)
    if name:
        block["title"] = name
    file.close()
    return block


def _data(url: str, path: str) -> tuple[str, str]:
    found = _data_url(url)
    if found is None:
        raise invalid_type(path, "a URL, or a data URL in base64 like data:image/png;base64,...", url[:30])
    return (found[1] or "").lower(), url[found.end() :]


def _assistant(item: FieldReader) -> list[Block]:
    """An assistant's turn: signed reasoning first, then text, then tool calls."""
    blocks = [*_thinking(item), *(block for block in _blocks(item) if block.get("text") != "")]
    refusal = item.take_as("refusal", str)
    if refusal:
        blocks.append({"type": "text", "text": refusal})
    for number, call in enumerate(item.take_as("tool_calls", list) or ()):
        blocks.append(_call(item.nested(call, f"tool_calls[{number}]")))
    item.ignore(*_OUTPUT_ONLY)
    return blocks or [{"type": "text", "text": ""}]


def _thinking(item: FieldReader) -> list[Block]:
    """The blocks of `thinking_blocks`, as the upstream sent them, without an index; the API checks their signatures."""
    path = item.path_of("thinking_blocks")
    blocks: list[Block] = []
    for number, block in enumerate(item.take_as("thinking_blocks", list) or ()):
        if not isinstance(block, dict) or block.get("type") not in ("thinking", "redacted_thinking"):
            raise invalid_type(f"{path}[{number}]", "a block of type thinking or redacted_thinking", block)
        blocks.append({key: value for key, value in block.items() if key != "index"})
    return blocks


def _call(call: FieldReader) -> Block:
    kind = call.take_as("type", str) or "function"
    if kind != "function":
        raise unsupported_field(call.path_of("type"), f"is {kind[:30]!r}, which is not supported; send function calls")
    function = call.nested(call.require("function", dict), "function")
    arguments = function.take_as("arguments", str) or "{}"
    value = loads(arguments.encode("utf-8", "surrogatepass"))
    if not isinstance(value, dict):
        raise invalid_type(function.path_of("arguments"), "a string that is a JSON object", arguments)
    block: Block = {
        "type": "tool_use",
        "id": tool_id(call.require("id", str)),
        "name": function.require("name", str),
        "input": value,
    }
    call.ignore("index")
    call.close()
    function.close()
    return block


def _result(item: FieldReader) -> Block:
    blocks = _blocks(item)
    for number, block in enumerate(blocks):
        if block["type"] == "document":
            path = item.path_of(f"content[{number}]")
            raise unsupported_field(path, "is a document; send text and images as a tool's result")
    item.ignore("name")  # the tool's; the call has it, too
    return {
        "type": "tool_result",
        "tool_use_id": tool_id(item.require("tool_call_id", str)),
        "content": compact(blocks),
    }


def tool_id(value: str) -> str:
    """Return a tool call's id in characters that the Messages API accepts; equal ids give equal results."""
    if _tool_id(value):
        return value
    return "call_" + hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]
