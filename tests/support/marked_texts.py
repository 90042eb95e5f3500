"""Requests with a mark in the prompt that determines the answer, in every API; no two marks have the same answer.

The mark is part of the prompt's text, so a translated request has the answer of the original one. Replicas generate
these answers with a `MarkedTexts` in place of their own generator, and clients with `answers`. Units: tokens.
"""

import random
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

import msgspec

from gateway.simulated.completion import Completion, CompletionChoice, Lengths, TextGenerator, _without_prefix
from gateway.simulated.request import ParsedRequest, RequestError, prompt_and_prefix
from ttft_gateway.apis.base import Api

Form = Literal["text", "thinking", "tool", "choices"]

_MARK = re.compile(rb"#(\d+)-(text|thinking|tool|choices)-(\d+)-(stop|length)#")
_LAST_WORDS = " now."
_TOOL = "weather"
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
_THINKING = 3
_CHOICES = 2
_MORE = 40  # tokens by which max_tokens exceeds an answer that stops by itself


class Marked(NamedTuple):
    """One request.

    Attributes:
        number: a number that no other request has.
        form: text, thinking before it, a tool call, or two choices.
        tokens: length of the answer.
        finish: "length" if the answer ends at max_tokens.
    """

    number: int
    form: Form
    tokens: int
    finish: Literal["stop", "length"]

    @property
    def prompt(self) -> str:
        """Text of the prompt."""
        return f"Please answer #{self.number}-{self.form}-{self.tokens}-{self.finish}#{_LAST_WORDS}"

    def body(self, api: Api, model: str, *, stream: bool) -> dict[str, object]:
        """Return the request in an API."""
        bound = "max_output_tokens" if api is Api.RESPONSES else "max_tokens"
        tokens = self.tokens if self.finish == "length" else self.tokens + _MORE
        body: dict[str, object] = {"model": model, "stream": stream, "temperature": 0, bound: tokens}
        messages = [{"role": "user", "content": self.prompt}]
        if api is Api.COMPLETIONS:
            body["prompt"] = self.prompt
        elif api is Api.RESPONSES:
            body |= {"input": messages, "store": False}
        else:
            body["messages"] = messages
        if self.form == "tool":
            body |= _TOOLS[api]
        if self.form == "choices":
            body["n"] = _CHOICES
        if stream and api in (Api.CHAT, Api.COMPLETIONS):
            body["stream_options"] = {"include_usage": True}
        return body


_TOOLS: Mapping[Api, Mapping[str, object]] = {
    Api.CHAT: {
        "tools": [{"type": "function", "function": {"name": _TOOL, "parameters": _SCHEMA}}],
        "tool_choice": "required",
    },
    Api.RESPONSES: {
        "tools": [{"type": "function", "name": _TOOL, "parameters": _SCHEMA, "strict": False}],
        "tool_choice": "required",
    },
    Api.MESSAGES: {"tools": [{"name": _TOOL, "input_schema": _SCHEMA}], "tool_choice": {"type": "any"}},
}


class MarkedTexts(TextGenerator):
    """The `TextGenerator` of a replica that answers marked requests."""

    __slots__ = ()

    def generate(
        self, api: Api, request: ParsedRequest, rng: random.Random, _lengths: Lengths, cached_tokens: int
    ) -> Completion:
        """Return the completion of a marked request; see `TextGenerator.generate`."""
        found = _MARK.search(request.text)
        if found is None:
            raise RequestError("the prompt has no mark")
        form, tokens, finish = found[2].decode(), int(found[3]), found[4].decode()
        plain = ParsedRequest(
            model=request.model,
            messages=msgspec.Raw(b'"%b"' % found[0]),
            temperature=0,
            max_tokens=tokens if finish == "length" else None,
            n=_CHOICES if form == "choices" else 1,
        )
        lengths = Lengths(tokens, tokens, _THINKING if form == "thinking" else 0)
        completion = super().generate(api, plain, rng, lengths, cached_tokens)
        if form == "tool":
            return msgspec.structs.replace(completion, choices=tuple(map(_as_call, completion.choices)))
        prefix = _prefix(request)
        if not prefix:
            return completion
        (choice,) = completion.choices
        rest = _without_prefix(choice.pieces, prefix)
        if rest is None:
            raise RequestError("the answer has another beginning")
        return msgspec.structs.replace(completion, choices=(msgspec.structs.replace(choice, pieces=rest),))


def _prefix(request: ParsedRequest) -> str:
    """Return the beginning of the answer that a request has; empty for none."""
    if request.prompt:
        return str(msgspec.json.decode(request.prompt)).partition(_LAST_WORDS)[2]
    return prompt_and_prefix(request)[1]


def _as_call(choice: CompletionChoice) -> CompletionChoice:
    ident = f"call_{zlib.crc32(''.join(choice.pieces).encode()):08x}"
    pieces = ('{"city": "', *choice.pieces, '"}')
    return CompletionChoice(pieces, "tool_calls", "tool_calls", choice.reasoning, (ident, _TOOL))


def answers(asked: Marked, seeds: Iterable[int]) -> Iterator[Completion]:
    """Yield the answers of replicas with these seeds."""
    request, lengths = ParsedRequest(messages=msgspec.Raw(asked.prompt.encode())), Lengths(1, 1, 0)
    for seed in seeds:
        yield MarkedTexts(seed, 0).generate(Api.CHAT, request, random.Random(seed), lengths, 0)
