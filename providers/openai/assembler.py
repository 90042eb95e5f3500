"""Converts an answer between its two forms: assembles the chunks of a stream to a body, and splits a body to chunks.

The body equals, as JSON, the one that the upstream would have sent for the same generation unstreamed, except for data
that a stream does not have: `id` and `created` are the stream's own; a key that the upstream sends only unstreamed
(`annotations: []`) is missing; a key that it sends only in streams stays, except padding; an empty `content` is null
in a message with tool calls, refusal, audio or reasoning, and otherwise as in the stream.

The caller supplies the function that builds a message; requests and races are not handled here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from providers.openai.values import Values, gather, gather_delta, joined, latest
from ttft_gateway.apis.sse import data_of, events_of, object_in
from ttft_gateway.apis.tolerant_json import dumps

_FIRST = ("id", "object", "created", "model", "choices", "usage")
_IN_EVERY_CHUNK = frozenset({"id", "created", "model", "system_fingerprint", "service_tier"})
_PADDING = frozenset({"obfuscation", "p"})  # OpenAI, Mistral: hides token lengths from observers of packet sizes


@dataclass(slots=True)
class Parts:
    """The values of one choice's fields in all chunks.

    Attributes:
        delta: fields under `delta`.
        fields: all other fields except `index`.
    """

    delta: Values = field(default_factory=dict)
    fields: Values = field(default_factory=dict)


class ChunkAssembler:
    """The `ttft_gateway.apis.base.Assembler` of OpenAI-compatible streams.

    A top-level field has the last value that is neither null nor empty; see `latest` for a choice's own fields and
    `joined` for the fields of a delta.

    Args:
        kind: the body's `object`.
        fold: makes a choice, without its index, from its parts.
    """

    def __init__(self, kind: str, fold: Callable[[Parts], dict[str, object]]) -> None:
        self._kind = kind
        self._fold = fold
        self._top: dict[str, object] = {}
        self._choices: dict[int, Parts] = {}

    def add(self, raw: bytes) -> None:
        """Take events; events without a chunk are ignored."""
        for event in events_of(raw):
            self._add(event)

    def body(self) -> bytes:
        """The answer as JSON, keys in the order in which upstreams send them."""
        top = self._top
        groq = top.get("x_groq")
        if isinstance(groq, dict) and "usage" in groq:
            self._set("usage", groq.pop("usage"))
        top["object"] = self._kind
        top["choices"] = [{"index": index, **self._fold(parts)} for index, parts in sorted(self._choices.items())]
        first = {key: top[key] for key in _FIRST if key in top}
        return dumps({**first, **top})

    def _add(self, event: bytes) -> None:
        chunk = object_in(data_of(event))
        if chunk is None:
            return
        choices = chunk.pop("choices", None)
        for key, value in chunk.items():
            self._set(key, value)
        for position, choice in enumerate(choices if isinstance(choices, list) else ()):
            if isinstance(choice, dict):
                self._add_choice(position, choice)

    def _set(self, key: str, value: object) -> None:
        if (value or key not in self._top) and key not in _PADDING:
            self._top[key] = value

    def _add_choice(self, position: int, choice: dict[str, object]) -> None:
        index = choice.pop("index", position)
        parts = self._choices.setdefault(index if isinstance(index, int) else position, Parts())
        delta = choice.pop("delta", None)
        if isinstance(delta, dict):
            gather_delta(parts.delta, delta)
        if "usage" in choice:  # Moonshot
            self._set("usage", choice.pop("usage"))
        gather(parts.fields, choice)


def choice_fields(parts: Parts) -> dict[str, object]:
    """A choice's own fields: `finish_reason`, `logprobs` with its lists extended, and the upstream's extensions."""
    made = {key: latest(values) for key, values in parts.fields.items()}
    lists: Values = {}
    for logprobs in parts.fields.get("logprobs", ()):
        if isinstance(logprobs, dict):
            gather(lists, logprobs)
    if lists:
        made["logprobs"] = {key: joined(values) for key, values in lists.items()}
    return made


def chunks_of(
    answer: Mapping[str, object],
    kind: str,
    opening: Callable[[Mapping[str, object]], dict[str, object]],
    closing: Mapping[str, object],
) -> Iterator[dict[str, object]]:
    """Split an answer into the chunks of an equal stream: two for each choice (content, finish_reason), and usage.

    Args:
        answer: the complete answer.
        kind: the chunks' `object`.
        opening: returns the content of a choice's first chunk.
        closing: the content of its last chunk.
    """
    head = {**{key: value for key, value in answer.items() if key in _IN_EVERY_CHUNK}, "object": kind}
    once = {key: value for key, value in answer.items() if key not in _IN_EVERY_CHUNK.union(_FIRST)}
    choices = answer.get("choices")
    for position, choice in enumerate(choices if isinstance(choices, list) else ()):
        if not isinstance(choice, dict):
            continue
        index = {"index": choice.get("index", position)}
        rest = {key: value for key, value in choice.items() if key not in ("index", "message", "text", "finish_reason")}
        yield {**head, **once, "choices": [{**index, **opening(choice), **rest, "finish_reason": None}]}
        yield {**head, "choices": [{**index, **closing, "finish_reason": choice.get("finish_reason")}]}
        once = {}
    if answer.get("usage"):
        yield {**head, "choices": [], "usage": answer["usage"]}
