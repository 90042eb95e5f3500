"""A model that calls a tool and answers with its result, as streams and documents of three APIs. Pure.

For tests of coding agents: the response to a request with a tool for reading files is a call of this tool;
the response to its result quotes the secret word in the result. A request without such a tool gets a title. No units.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

Json = dict[str, object]

FILE = "harbour.txt"
SECRET = re.compile(r"lantern-\d+")
TITLE = "Reading a file"
_READERS: Mapping[str, Mapping[str, object]] = {  # tool -> arguments of a call
    "Read": {"file_path": "{folder}/" + FILE},
    "read": {"filePath": "{folder}/" + FILE},
    "exec_command": {"cmd": f"cat {FILE}"},
    "shell": {"command": ["cat", FILE]},
}


class Turn(NamedTuple):
    """One response of the model.

    Attributes:
        text: the whole text; "" for a call.
        tool: name of the called tool; "" for a text.
        arguments: its arguments as JSON.
    """

    text: str
    tool: str = ""
    arguments: str = ""


def turn(body: Mapping[str, object], folder: str) -> Turn:
    """Return the response to a request of any of the three APIs.

    Args:
        body: the request.
        folder: folder of the file that the model reads.
    """
    for result in reversed(list(_results(body))):
        if found := SECRET.search(result):
            return Turn(f"The file contains {found[0]}.")
        return Turn(f"No word was found in: {result[:200]}")
    for name, arguments in _READERS.items():
        if name in _tools(body):
            return Turn("", name, json.dumps(arguments).replace("{folder}", folder))
    return Turn(TITLE)


def _tools(body: Mapping[str, object]) -> set[object]:
    tools = body.get("tools")
    rows = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return {tool.get("function", tool).get("name") for tool in rows}


def _results(body: Mapping[str, object]) -> Iterator[str]:
    """Yield the results of tools in a conversation, as JSON."""
    rows = body.get("messages", body.get("input"))
    for row in rows if isinstance(rows, list) else ():
        if row.get("role") == "tool" or row.get("type") == "function_call_output":
            yield json.dumps(row)
        content = row.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") == "tool_result":
                yield json.dumps(part)


def response(path: str, body: Mapping[str, object], folder: str) -> tuple[str, list[bytes]]:
    """Return the content type of a response, and its pieces; the first piece of a stream has no content yet."""
    said = turn(body, folder)
    stream = body.get("stream") is True
    api = path.partition("?")[0].rpartition("/v1/")[2]
    if api == "messages":
        events, document = _message_events(said), _message(said)
    elif api == "responses":
        events, document = _response_events(said), _response(said, "completed")
    else:
        events, document = _chunks(said), _completion(said)
    if stream:
        return "text/event-stream", events
    return "application/json", [json.dumps(document).encode()]


def _named(data: Json) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (str(data["type"]).encode(), json.dumps(data).encode())


def _message(said: Turn) -> Json:
    block: Json = {"type": "text", "text": said.text}
    if said.tool:
        block = {"type": "tool_use", "id": "toolu_1", "name": said.tool, "input": json.loads(said.arguments)}
    usage = {"input_tokens": 50, "output_tokens": 10}
    stop = "tool_use" if said.tool else "end_turn"
    fields: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "content": [block]}
    return {**fields, "stop_reason": stop, "stop_sequence": None, "usage": usage}


def _message_events(said: Turn) -> list[bytes]:
    whole = _message(said)
    start = {**whole, "content": [], "stop_reason": None, "usage": {"input_tokens": 50, "output_tokens": 1}}
    block: Json = {"type": "text", "text": ""}
    delta: Json = {"type": "text_delta", "text": said.text}
    if said.tool:
        block = {"type": "tool_use", "id": "toolu_1", "name": said.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": said.arguments}
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    events: list[Json] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 10}},
        {"type": "message_stop"},
    ]
    return [_named(event) for event in events]


def _item(said: Turn, status: str) -> Json:
    if said.tool:
        fields: Json = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": said.tool, "status": status}
        return {**fields, "arguments": said.arguments if status == "completed" else ""}
    parts = [{"type": "output_text", "text": said.text, "annotations": []}] if status == "completed" else []
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": parts}


def _response(said: Turn, status: str) -> Json:
    ended = status == "completed"
    usage = {
        "input_tokens": 50,
        "output_tokens": 10,
        "total_tokens": 60,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    fields: Json = {"id": "resp_1", "object": "response", "created_at": 1, "model": "scripted", "status": status}
    return {**fields, "output": [_item(said, status)] if ended else [], "usage": usage if ended else None}


def _response_events(said: Turn) -> list[bytes]:
    at: Json = {"item_id": _item(said, "completed")["id"], "output_index": 0}
    inside: list[Json]
    if said.tool:
        inside = [
            {"type": "response.function_call_arguments.delta", **at, "delta": said.arguments},
            {"type": "response.function_call_arguments.done", **at, "arguments": said.arguments},
        ]
    else:
        part: Json = {"type": "output_text", "text": "", "annotations": []}
        at["content_index"] = 0
        inside = [
            {"type": "response.content_part.added", **at, "part": part},
            {"type": "response.output_text.delta", **at, "delta": said.text},
            {"type": "response.output_text.done", **at, "text": said.text},
            {"type": "response.content_part.done", **at, "part": {**part, "text": said.text}},
        ]
    events: list[Json] = [
        {"type": "response.created", "response": _response(said, "in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": _item(said, "in_progress")},
        *inside,
        {"type": "response.output_item.done", "output_index": 0, "item": _item(said, "completed")},
        {"type": "response.completed", "response": _response(said, "completed")},
    ]
    return [_named({**event, "sequence_number": number}) for number, event in enumerate(events)]


def _completion(said: Turn) -> Json:
    message: Json = {"role": "assistant", "content": said.text or None}
    if said.tool:
        call = {"name": said.tool, "arguments": said.arguments}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": call}]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if said.tool else "stop"}
    usage = {"prompt_tokens": 50, "completion_tokens": 10, "total_tokens": 60}
    return {"id": "chat_1", "object": "chat.completion", "created": 1, "model": "scripted", "choices": [choice]} | {
        "usage": usage
    }


def _chunks(said: Turn) -> list[bytes]:
    whole = _completion(said)
    delta: Json = {"content": said.text}
    if said.tool:
        call = {"name": said.tool, "arguments": said.arguments}
        delta = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": call}]}
    finish = "tool_calls" if said.tool else "stop"
    choices: list[list[Json]] = [
        [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
        [{"index": 0, "delta": delta, "finish_reason": None}],
        [{"index": 0, "delta": {}, "finish_reason": finish}],
        [],
    ]
    base = {key: whole[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    rows = [{**base, "choices": each} for each in choices]
    rows[-1]["usage"] = whole["usage"]
    return [b"data: %s\n\n" % json.dumps(row).encode() for row in rows] + [b"data: [DONE]\n\n"]
