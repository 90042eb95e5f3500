"""The messages of a chat completion as the system prompt and turns of Anthropic's Messages API.

Leading system and developer messages become the system prompt; later ones stay where they are, as `role: system`, which
newer models take and older ones refuse. Tool results belong to the user's turn there, so those of one round are put
together, with what the user says next. What has no counterpart (audio, files of another provider, a participant's
name) is refused.

Knows nothing of the other parameters. Sans-I/O.
"""

import hashlib
import re

from providers.json_fields import Given, as_list, plain, unsuited, wrong
from providers.tolerant_json import loads

Block = dict[str, object]
Turn = dict[str, object]

_data_url = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,", re.ASCII).match
_tool_id = re.compile(r"[a-zA-Z0-9_-]+").fullmatch  # what the API takes
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_PDF = "application/pdf"
# Reasoning of earlier turns goes back only as the signed blocks it came in; the rest is output that nobody reads again.
_OUTPUT_ONLY = ("annotations", "provider_specific_fields", "reasoning", "reasoning_content", "reasoning_details")


def turns_of(given: Given) -> tuple[list[Block], list[Turn]]:
    """The system prompt's blocks and the turns, from the request's `messages`."""
    system: list[Block] = []
    turns: list[Turn] = []
    for number, message in enumerate(given.need("messages", list)):
        place = given.inner(message, f"messages[{number}]")
        role = place.need("role", str)
        if role in ("system", "developer"):
            blocks = _blocks(place)
            if turns:
                turns.append({"role": "system", "content": blocks})
            else:
                system += blocks
        elif role == "user":
            _add_user(turns, _blocks(place))
        elif role == "assistant":
            turns.append({"role": "assistant", "content": _assistant(place)})
        elif role == "tool":
            _add_user(turns, [_result(place)])
        else:
            raise unsuited(place.at("role"), f"the Messages API has no role {role[:20]!r}")
        place.close()
    for turn in turns:
        turn["content"] = plain(_as_blocks(turn))
    return system, turns


def _as_blocks(turn: Turn) -> list[Block]:
    blocks = turn["content"]
    assert isinstance(blocks, list)
    return blocks


def _add_user(turns: list[Turn], blocks: list[Block]) -> None:
    """Tool results, and what the user says behind them, belong to one turn; other turns stay apart."""
    last = turns[-1] if turns and turns[-1]["role"] == "user" else None
    if last is not None and any(block["type"] == "tool_result" for block in _as_blocks(last)[-1:]):
        last["content"] = [*_as_blocks(last), *blocks]
    else:
        turns.append({"role": "user", "content": blocks})


def _blocks(place: Given) -> list[Block]:
    """A message's content: a string or parts."""
    content = place.take("content")
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts = as_list(content, place.at("content"))
    return [_part(place.inner(part, f"content[{number}]")) for number, part in enumerate(parts)]


def _part(part: Given) -> Block:
    kind = part.need("type", str)
    block: Block
    if kind in ("text", "refusal"):
        block = {"type": "text", "text": part.need(kind, str)}
    elif kind == "image_url":
        image = part.inner(part.need("image_url", dict), "image_url")
        block = {"type": "image", "source": _image(image.need("url", str), image.at("url"))}
        image.allow("detail", "auto", "high", "original")  # images are never scaled down on purpose there
        image.close()
    elif kind == "file":
        block = _document(part.inner(part.need("file", dict), "file"))
    else:
        raise unsuited(part.at("type"), f"the Messages API takes no content of the type {kind[:20]!r}")
    cache = part.take("cache_control")
    if cache is not None:
        block["cache_control"] = cache
    part.close()
    return block


def _image(url: str, path: str) -> Block:
    """The source of an image, from a data URL or an address."""
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    media, data = _data(url, path)
    if media not in _IMAGES:
        raise unsuited(path, f"the Messages API takes JPEG, PNG, GIF and WebP images, not {media[:30]!r}")
    return {"type": "base64", "media_type": media, "data": data}


def _document(file: Given) -> Block:
    """A PDF that is sent along; files kept at another provider are unknown to this one."""
    data = file.take_as("file_data", str)
    if data is None:
        raise unsuited(file.at("file_id"), "the file is kept at another provider; send its data as `file_data`")
    media, encoded = _data(data, file.at("file_data"))
    if media != _PDF:
        raise unsuited(file.at("file_data"), f"the Messages API takes PDF files, not {media[:30]!r}")
    block: Block = {"type": "document", "source": {"type": "base64", "media_type": media, "data": encoded}}
    name = file.take_as("filename", str)
    if name:
        block["title"] = name
    file.close()
    return block


def _data(url: str, path: str) -> tuple[str, str]:
    """Media type and data of a data URL in base64."""
    found = _data_url(url)
    if found is None:
        raise wrong(path, "an address, or a data URL in base64 like data:image/png;base64,...", url[:30])
    return (found[1] or "").lower(), url[found.end() :]


def _assistant(place: Given) -> list[Block]:
    """An assistant's turn: signed reasoning first, then text, then tool calls."""
    blocks = [*_thinking(place), *(block for block in _blocks(place) if block.get("text") != "")]
    refusal = place.take_as("refusal", str)
    if refusal:
        blocks.append({"type": "text", "text": refusal})
    for number, call in enumerate(place.take_as("tool_calls", list) or ()):
        blocks.append(_call(place.inner(call, f"tool_calls[{number}]")))
    place.ignore(*_OUTPUT_ONLY)
    return blocks or [{"type": "text", "text": ""}]


def _thinking(place: Given) -> list[Block]:
    """The blocks of `thinking_blocks`, exactly as the gateway gave them out; the API checks their signatures."""
    path = place.at("thinking_blocks")
    blocks: list[Block] = []
    for number, block in enumerate(place.take_as("thinking_blocks", list) or ()):
        if not isinstance(block, dict) or block.get("type") not in ("thinking", "redacted_thinking"):
            raise wrong(f"{path}[{number}]", "a block of the type thinking or redacted_thinking", block)
        blocks.append(dict(block))
    return blocks


def _call(call: Given) -> Block:
    kind = call.take_as("type", str) or "function"
    if kind != "function":
        raise unsuited(call.at("type"), "the Messages API has tool calls with JSON arguments only")
    function = call.inner(call.need("function", dict), "function")
    arguments = function.take_as("arguments", str) or "{}"
    value = loads(arguments.encode("utf-8", "surrogatepass"))
    if not isinstance(value, dict):
        raise wrong(function.at("arguments"), "a string that is a JSON object", arguments)
    block: Block = {
        "type": "tool_use",
        "id": tool_id(call.need("id", str)),
        "name": function.need("name", str),
        "input": value,
    }
    call.ignore("index")
    call.close()
    function.close()
    return block


def _result(place: Given) -> Block:
    blocks = _blocks(place)
    for number, block in enumerate(blocks):
        if block["type"] == "document":
            raise unsuited(place.at(f"content[{number}]"), "a tool's result holds text and images")
    return {
        "type": "tool_result",
        "tool_use_id": tool_id(place.need("tool_call_id", str)),
        "content": plain(blocks),
    }


def tool_id(value: str) -> str:
    """The id of a tool call in the letters that the Messages API takes; the same id always gives the same."""
    if _tool_id(value):
        return value
    return "call_" + hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]
