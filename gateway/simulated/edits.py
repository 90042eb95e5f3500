"""Edits of completions and scripts; faults.py maps fault names to them.

Pure: each edit takes a completion or a script with the fault's arguments and returns a new one. Counts of events count
content events only. A failure is an event after the content, or a whole JSON document, in the form of the API; an
unfinished document has half of each text and no finish reason, as from a server that writes the end of an answer in
any case. Units: seconds.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from gateway.simulated.completion import Completion, CompletionChoice
from gateway.simulated.render import DONE, error_body
from gateway.simulated.script import JSON, End, FaultArgs, Framing, Script, Step
from ttft_gateway.apis.base import FIRST_CONTENT, Api, Frame, FrameKind
from ttft_gateway.apis.errors import ErrorFrame
from ttft_gateway.apis.json_fields import dict_or_empty
from ttft_gateway.apis.responses.writer import EventWriter
from ttft_gateway.apis.sse import data_of
from ttft_gateway.apis.tolerant_json import dumps, loads

_AFTER_CONTENT = (FrameKind.FINISH, FrameKind.USAGE, FrameKind.DONE)
_SPACING_S = 0.0003  # between tiny writes, so that they arrive one by one
_PAUSE_S = 0.002  # between the halves of a character, so that they arrive in two reads
_CODE = "server_error"
_STOP = Frame(FrameKind.DONE, b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
_TEXTS = frozenset({"content", "text", "refusal", "arguments"})
_UNSAID = frozenset({"finish_reason", "stop_reason", "incomplete_details"})

EditScript = Callable[[Script, FaultArgs], Script]


# completions


def content_filter(completion: Completion, args: FaultArgs) -> Completion:
    """Stop at the provider's filter after `count` tokens."""
    return _each(completion, lambda choice: CompletionChoice(choice.pieces[: args.count], "content_filter"))


def refusal(completion: Completion, _args: FaultArgs) -> Completion:
    """Replace the text by a refusal of the model."""
    return _each(completion, lambda _: CompletionChoice(("I", " cannot", " help", " with", " that."), kind="refusal"))


def big(completion: Completion, args: FaultArgs) -> Completion:
    """Make the first token `count` bytes long."""
    return _first_piece(completion, "x" * args.count)


def accented(completion: Completion, _args: FaultArgs) -> Completion:
    """Replace the first token by characters of two and four bytes."""
    return _first_piece(completion, "é🙂")


def _first_piece(completion: Completion, text: str) -> Completion:
    return _each(completion, lambda choice: replace(choice, pieces=(text, *choice.pieces[1:])))


def _each(completion: Completion, edit: Callable[[CompletionChoice], CompletionChoice]) -> Completion:
    return replace(completion, choices=tuple(edit(choice) for choice in completion.choices))


# scripts with an early end


def cut(end: End, framing: Framing | None = None) -> EditScript:
    """Return an edit: `count` events, then `end`; for JSON half of the body, then `end`."""

    def edit(script: Script, args: FaultArgs) -> Script:
        kept = _first_halves(script.steps) if script.json else _first_events(script, args.count)
        return replace(script, steps=kept, end=end, framing=framing or script.framing)

    return edit


def cut_mid(script: Script, args: FaultArgs) -> Script:
    """Send `count` events and half of the next one, or half of a JSON body, then close the connection."""
    kept = () if script.json else _first_events(script, args.count)
    return replace(script, steps=(*kept, *_first_halves(script.steps[len(kept) :][:1])), end=End.FIN)


def short(script: Script, args: FaultArgs) -> Script:
    """End the body properly after `count` events; a JSON body is half of it, or empty without events."""
    if script.json:
        half = _first_halves(script.steps) if args.count else ()
        return replace(script, steps=half, length=sum(len(step.frame.raw) for step in half))
    return replace(script, steps=_first_events(script, args.count))


def done(script: Script, args: FaultArgs) -> Script:
    """Send `count` events and the closing event; a JSON body has half a text and no finish, or is empty."""
    if not script.json:
        return _ending_in(script, args, lambda _: _STOP if args.api is Api.MESSAGES else DONE)  # alone no finish
    if not args.count:
        return short(script, args)
    unfinished = _edited(script, _unfinished_document)
    return replace(unfinished, length=sum(len(step.frame.raw) for step in unfinished.steps))


def no_done(script: Script, _args: FaultArgs) -> Script:
    """Omit `[DONE]`."""
    return replace(script, steps=tuple(step for step in script.steps if step.frame.kind is not FrameKind.DONE))


def error_frame(message: str) -> EditScript:
    """Return an edit: `count` events, then an error object as an event; for JSON an error object."""
    raw = b"data: " + error_body(message, "server_error", "internal_error") + b"\n\n"
    return _ending_in_error(raw, ErrorFrame(message, kind="server_error", code="internal_error"))


def named_error(message: str) -> EditScript:
    """Return an edit: `count` events, then an event named error; for JSON an error object."""

    def edit(script: Script, args: FaultArgs) -> Script:
        if script.json:
            return json_error(script, args)
        return _ending_in(script, args, lambda before: _error_event(args.api, message, before))

    return edit


def finish_error() -> EditScript:
    """Return an edit: `count` events, then the finish_reason "error"; for JSON an error object.

    The Responses API has the status "failed" instead.
    """
    raw = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}\n\n'
    chat, response = _ending_in_error(raw, ErrorFrame("finish_reason is 'error'")), ended("failed")
    return lambda script, args: (response if args.api is Api.RESPONSES else chat)(script, args)


def ended(status: str) -> EditScript:
    """Return an edit: `count` events, then the event of a response with this status.

    For JSON it is the response with half of its text in the Responses API, and an error object elsewhere.
    """

    def edit(script: Script, args: FaultArgs) -> Script:
        if not script.json:
            return _ending_in(script, args, lambda before: _failed_event(args.api, status, before))
        if args.api is not Api.RESPONSES:
            return json_error(script, args)
        failed = _edited(script, lambda raw: dumps(_ended(_halved(loads(raw)), status)))
        error = _status_error(status)
        steps = tuple(Step(at_s, Frame(FrameKind.ERROR, frame.raw, error=error)) for at_s, frame in failed.steps)
        return replace(script, steps=steps, length=sum(len(step.frame.raw) for step in steps))

    return edit


def json_error(_script: Script, _args: FaultArgs) -> Script:
    """Send a 200 with an error object as body."""
    body = error_body("The engine is dead", "server_error", "engine_dead")
    error = ErrorFrame("The engine is dead", kind="server_error", code="engine_dead")
    step = Step(0.0, Frame(FrameKind.ERROR, body, error=error))
    return Script(200, JSON, steps=(step,), framing=Framing.LENGTH, length=len(body))


def _first_events(script: Script, count: int) -> tuple[Step, ...]:
    """Return the steps with the first `count` content events, without the finish."""
    kept = []
    for step in script.steps:
        if step.frame.kind in _AFTER_CONTENT or (step.frame.kind in FIRST_CONTENT and count == 0):
            break
        count -= step.frame.kind in FIRST_CONTENT
        kept.append(step)
    return tuple(kept)


def _first_halves(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    halves = (Frame(FrameKind.PREAMBLE, step.frame.raw[: len(step.frame.raw) // 2]) for step in steps)
    return tuple(Step(step.at_s, half) for step, half in zip(steps, halves, strict=True))


def _ending_in_error(raw: bytes, error: ErrorFrame) -> EditScript:
    def edit(script: Script, args: FaultArgs) -> Script:
        if script.json:
            return json_error(script, args)
        return _ending_in(script, args, lambda _: Frame(FrameKind.ERROR, raw, error=error))

    return edit


def _ending_in(script: Script, args: FaultArgs, last: Callable[[Sequence[Frame]], Frame]) -> Script:
    """Return a stream of `count` events and a last one, which is made from all events before it."""
    kept = _first_events(script, args.count)
    frame = last([*script.prelude, *(step.frame for step in kept)])
    return replace(script, steps=(*kept, Step(kept[-1].at_s if kept else 0.0, frame)))


# endings in the form of an API


def _error_event(api: Api, message: str, before: Sequence[Frame]) -> Frame:
    """Return an event named error."""
    error = ErrorFrame(message, kind=_CODE, code="internal_error")
    if api is Api.RESPONSES:
        fields = {"code": error.code, "message": message, "param": None}
        return Frame(FrameKind.ERROR, EventWriter(len(_events(before))).event("error", **fields), error=error)
    raw = b"event: error\ndata: " + error_body(message, _CODE, error.code) + b"\n\n"
    return Frame(FrameKind.ERROR, raw, error=error)


def _failed_event(api: Api, status: str, before: Sequence[Frame]) -> Frame:
    """Return the event of a response that failed or was cancelled.

    In the Responses API it has the response as it was created; elsewhere it is a chunk with an error.
    """
    error = _status_error(status)
    if api is not Api.RESPONSES:
        error.kind = None
        choice = {"index": 0, "delta": {}, "finish_reason": "error"}
        raw = b"data: " + dumps({"choices": [choice], "error": {"code": _CODE, "message": error.message}}) + b"\n\n"
        return Frame(FrameKind.ERROR, raw, error=error)
    events = _events(before)
    created = dict_or_empty(loads(data_of(events[0]) or b"")) if events else {}
    raw = EventWriter(len(events)).lifecycle(status, _ended(created.get("response"), status))
    return Frame(FrameKind.ERROR, raw, error=error)


def _unfinished_document(raw: bytes) -> bytes:
    """Return a document with half of each text, without a finish reason; the Responses API has a status instead."""
    document = _halved(loads(raw))
    if isinstance(document, dict) and "status" in document:
        document["status"] = "in_progress"
    return dumps(document)


def _events(before: Sequence[Frame]) -> list[bytes]:
    return [event for frame in before for event in frame.raw.split(b"\n\n") if data_of(event)]


def _status_error(status: str) -> ErrorFrame:
    return ErrorFrame(f"The response is {status}", kind=_CODE, code=_CODE)


def _ended(response: object, status: str) -> dict[str, object]:
    error = {"code": _CODE, "message": "The model failed"} if status == "failed" else None
    return {**dict_or_empty(response), "status": status, "error": error}


def _halved(value: object) -> object:
    if isinstance(value, list):
        return [_halved(each) for each in value]
    if not isinstance(value, dict):
        return value
    halved: dict[str, object] = {"input": {}} if value.get("type") == "tool_use" else {}
    halved |= {key: each[: len(each) // 2] for key, each in value.items() if key in _TEXTS and isinstance(each, str)}
    return {**{key: _halved(each) for key, each in value.items()}, **halved, **dict.fromkeys(_UNSAID & value.keys())}


# scripts with unusual events


def stall(script: Script, args: FaultArgs) -> Script:
    """Send nothing for `seconds` after `count` events, then the other events."""
    unchanged = 0 if script.json else len(_first_events(script, args.count))
    late = (Step(step.at_s + args.seconds, step.frame) for step in script.steps[unchanged:])
    return replace(script, steps=(*script.steps[:unchanged], *late))


def malformed(script: Script, args: FaultArgs) -> Script:
    """Send an event with invalid JSON after `count` events; a JSON body is invalid."""
    if script.json:
        return _edited(script, lambda raw: b"[" + raw[1:])
    kept = _first_events(script, args.count)
    at_s = kept[-1].at_s if kept else 0.0
    broken = Step(at_s, Frame(FrameKind.MALFORMED, b'data: {"id": "bro\n\n'))
    return replace(script, steps=(*kept, broken, *script.steps[len(kept) :]))


def pings(script: Script, _args: FaultArgs) -> Script:
    """Send a comment before each event."""
    if script.json:
        return script
    ping = Frame(FrameKind.COMMENT, b": ping\n\n")
    return replace(script, steps=tuple(each for step in script.steps for each in (Step(step.at_s, ping), step)))


def crlf(script: Script, _args: FaultArgs) -> Script:
    """End lines with CRLF."""
    return _edited(script, lambda raw: raw.replace(b"\n", b"\r\n"))


def fields(script: Script, _args: FaultArgs) -> Script:
    """Add id and retry fields to each event, and an event without data before it."""
    return script if script.json else _edited(script, lambda raw: b"retry: 2000\n\nid: 7\nretry: 3000\n" + raw)


def with_length(script: Script, _args: FaultArgs) -> Script:
    """Send a content-length instead of chunks; none if the response never ends, because it would be complete."""
    if script.end is End.SILENCE:
        return script
    raws = [frame.raw for frame in script.prelude] + [step.frame.raw for step in script.steps]
    return replace(script, framing=Framing.LENGTH, length=sum(map(len, raws)))


def _edited(script: Script, edit: Callable[[bytes], bytes]) -> Script:
    prelude = tuple(replace(frame, raw=edit(frame.raw)) for frame in script.prelude)
    steps = tuple(Step(step.at_s, replace(step.frame, raw=edit(step.frame.raw))) for step in script.steps)
    return replace(script, prelude=prelude, steps=steps)


# scripts with other writes; their steps are not whole events


def split(script: Script, args: FaultArgs) -> Script:
    """Write 1 to `count` bytes at a time; more for an event that would take longer than 0.3 s."""

    def cut_up(raw: bytes) -> Iterator[bytes]:
        most = max(1, args.count, len(raw) // 500)
        start = 0
        while start < len(raw):
            stop = start + 1 + zlib.crc32(raw[start : start + 16], start) % most
            yield raw[start:stop]
            start = stop

    return _in_pieces(script, cut_up, _SPACING_S)


def utf8(script: Script, _args: FaultArgs) -> Script:
    """Write each event with multi-byte characters in two pieces, cut inside the first such character."""

    def cut_character(raw: bytes) -> Iterator[bytes]:
        inside = next((index + 1 for index, byte in enumerate(raw) if byte >= 0x80), 0)
        if inside:
            yield raw[:inside]
        yield raw[inside:]

    return _in_pieces(script, cut_character, _PAUSE_S)


def _in_pieces(script: Script, cut_up: Callable[[bytes], Iterator[bytes]], spacing_s: float) -> Script:
    """Write each event in pieces; the last piece has the event's kind."""
    steps: list[Step] = []
    for step in script.steps:
        *parts, last = cut_up(step.frame.raw)
        at_s = step.at_s
        for part in parts:
            steps.append(Step(at_s, Frame(FrameKind.PREAMBLE, part)))
            at_s += spacing_s
        steps.append(Step(at_s, replace(step.frame, raw=last)))
    return replace(script, steps=tuple(steps))


def coalesce(script: Script, args: FaultArgs) -> Script:
    """Write `count` events together, at the time of the last one, with the kind of the first content event."""
    size = max(1, args.count)
    steps = []
    for start in range(0, len(script.steps), size):
        group = script.steps[start : start + size]
        main = next((step.frame for step in group if step.frame.kind in FIRST_CONTENT), group[-1].frame)
        raw = b"".join(step.frame.raw for step in group)
        steps.append(Step(group[-1].at_s, replace(main, raw=raw)))
    return replace(script, steps=tuple(steps))
