"""Generates a simulated completion: deterministic text, tool calls and small JSON documents, token by token.

A `Completion` is content only; render.py makes stream events or a JSON body of it. The text of a choice is a function
of a key, so two replicas with one seed give the same text for a prompt at temperature 0. Units: tokens; one piece of
text is one token.
"""

import json
import random
import zlib
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import msgspec

from gateway.simulated.request import BYTES_PER_TOKEN, ParsedRequest, RequestError, choice_count, prompt_and_prefix
from ttft_gateway.apis.base import Api, Usage

PieceKind = Literal["content", "refusal", "tool_calls"]

_PLAIN = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so said what up its "
    "about other time new some could né Zürich 日本 🙂"
)
_WORDS = tuple(f"{word} " for word in _PLAIN.split())
_MASK = 0xFFFFFFFF
_PREFIX = {Api.CHAT: "chatcmpl-", Api.COMPLETIONS: "cmpl-", Api.MESSAGES: "msg_"}  # of ids
_PIECE = 6  # characters of a JSON document or tool arguments in one token
_ANY_JSON = msgspec.Raw(b'{"type": "object", "properties": {"answer": {}}}')
_DEPTH_MAX = 16
_VALUES_MAX = 1000  # in a document made from a schema, which may refer to itself


class CompletionChoice(msgspec.Struct, frozen=True):
    """One choice of a completion.

    Attributes:
        pieces: tokens of the text, or of a tool call's arguments.
        finish: the finish_reason.
        kind: field of the message that holds the pieces.
        reasoning: thinking tokens before the pieces.
        tool: id and name of the called function; None unless kind is "tool_calls".
    """

    pieces: tuple[str, ...]
    finish: str = "stop"
    kind: PieceKind = "content"
    reasoning: tuple[str, ...] = ()
    tool: tuple[str, str] | None = None


class Completion(msgspec.Struct, frozen=True):
    """A whole completion.

    Attributes:
        ident: id of the completion.
        model: the request's model name.
        choices: at least one.
        usage: token counts, with the tier that the answer states.
    """

    ident: str
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: Usage


class Lengths(msgspec.Struct, frozen=True):
    """Lengths of completions.

    Attributes:
        tokens: tokens of a completion without a max_tokens.
        tokens_max: maximum of tokens.
        reasoning: thinking tokens before the text.
    """

    tokens: int
    tokens_max: int
    reasoning: int


class TextGenerator(NamedTuple):
    """Generates the completions of one replica.

    Attributes:
        seed: seed of texts; generators with one seed give the same text for a prompt at temperature 0.
        replica_id: number in the ids of completions.
    """

    seed: int
    replica_id: int

    def generate(
        self, api: Api, request: ParsedRequest, rng: random.Random, lengths: Lengths, cached_tokens: int
    ) -> Completion:
        """Return the completion of one request.

        Args:
            api: the request's API.
            request: the request.
            rng: source of one draw, which decides the text unless the request requires a repeatable one.
            lengths: token counts of the profile.
            cached_tokens: prompt tokens found in the prefix cache.

        Raises:
            RequestError: The JSON schema or the message to continue is invalid.
        """
        draw = rng.getrandbits(64)
        key, prefix = draw, ""
        if request.fixed or request.continue_final_message:
            prompt, prefix = prompt_and_prefix(request)
            key = zlib.crc32(prompt, (self.seed ^ (request.seed or 0)) & _MASK) if request.fixed else draw
        text = bytes(request.prompt)
        is_continuable = request.fixed and text.startswith(b'"') and choice_count(request) == 1
        choices = tuple(
            _choice(request, key + index * 7919, lengths, prefix, is_continuable=is_continuable)
            for index in range(choice_count(request))
        )
        reasoning = sum(len(choice.reasoning) for choice in choices)
        completion = reasoning + sum(len(choice.pieces) for choice in choices)
        usage = Usage(len(request.text) // BYTES_PER_TOKEN + 1, completion, cached_tokens, reasoning)
        return Completion(f"{_PREFIX[api]}{self.replica_id:08x}{draw:016x}", request.model, choices, usage)


def _choice(
    request: ParsedRequest, key: int, lengths: Lengths, prefix: str, *, is_continuable: bool
) -> CompletionChoice:
    """Return a required tool call, a JSON document, or text.

    Args:
        is_continuable: the text goes on in the same way after a prompt that ends with a part of it.
    """
    reasoning = _words(key + 1, lengths.reasoning)
    tool = request.forced_tool
    if tool is not None:
        call = (f"call_{key & _MASK:08x}", tool.name)
        return CompletionChoice(_document(tool.parameters), "tool_calls", "tool_calls", reasoning, call)
    if request.response_format is not None and request.response_format.type != "text":
        described = request.response_format.json_schema
        return CompletionChoice(_document(_ANY_JSON if described is None else described.schema), reasoning=reasoning)
    finish = "stop" if request.limit is None else "length"
    count = min(lengths.tokens if request.limit is None else request.limit, lengths.tokens_max)
    if is_continuable:
        return CompletionChoice(_words_after(key, count), finish, reasoning=reasoning)
    if not prefix:
        return CompletionChoice(_words(key, count), finish, reasoning=reasoning)
    seen = min(len(prefix), lengths.tokens_max)  # a token has at least 1 character; max_tokens counts new tokens
    words = _without_prefix(_words(key, count if request.limit is None else count + seen), prefix)
    if words is None:
        words = _words(zlib.crc32(prefix.encode(), key & _MASK), count)
    return CompletionChoice(words[:count], finish, reasoning=reasoning)


def _words(key: int, count: int) -> tuple[str, ...]:
    """Return the first tokens of the text of a key."""
    words = []
    state = key
    for _ in range(count):
        state = (state * 1664525 + 1013904223) & _MASK  # the generator of Numerical Recipes
        words.append(_WORDS[state >> 26])
    return tuple(words)


def _words_after(state: int, count: int) -> tuple[str, ...]:
    """Return tokens of which each follows from the prompt and all tokens before it; `state`: CRC of the prompt."""
    words = []
    for _ in range(count):
        words.append(_WORDS[(state * 2654435761 & _MASK) >> 26])  # Knuth's multiplier
        state = zlib.crc32(words[-1].encode(), state)
    return tuple(words)


def _without_prefix(words: tuple[str, ...], prefix: str) -> tuple[str, ...] | None:
    """Return the part of a text after a prefix; None if the text does not begin with it."""
    rest = prefix
    for index, word in enumerate(words):
        if not rest:
            return words[index:]
        if word.startswith(rest):
            return tuple(filter(None, (word[len(rest) :], *words[index + 1 :])))
        if not rest.startswith(word):
            return None
        rest = rest[len(word) :]
    return None if rest else ()


def _document(schema: msgspec.Raw) -> tuple[str, ...]:
    try:
        text = json.dumps(example_document(msgspec.json.decode(schema)))
    except (TypeError, AttributeError, LookupError) as error:
        raise RequestError("a JSON schema in the request is invalid; send an object with known types") from error
    return tuple(text[start : start + _PIECE] for start in range(0, len(text), _PIECE))


def example_document(schema: object) -> object:
    """Return a small document that a common JSON schema allows; "word" for all other schemas."""
    definitions = schema.get("$defs") if isinstance(schema, Mapping) else None
    return _example(
        schema, definitions if isinstance(definitions, Mapping) else {}, iter(range(_VALUES_MAX)), _DEPTH_MAX
    )


def _example(schema: object, definitions: Mapping[str, object], budget: Iterator[int], depth: int) -> object:
    if not isinstance(schema, Mapping) or depth == 0 or next(budget, None) is None:
        return "word"

    def inner(part: object) -> object:
        return _example(part, definitions, budget, depth - 1)

    kind = schema.get("type")
    if "$ref" in schema:
        return inner(definitions.get(str(schema["$ref"]).rpartition("/")[2]))
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("anyOf"):
        return inner(schema["anyOf"][0])
    if kind == "object":
        return {str(name): inner(part) for name, part in (schema.get("properties") or {}).items()}
    if kind == "array":
        return [inner(schema.get("items"))]
    return {"integer": 7, "number": 0.5, "boolean": True, "null": None}.get(str(kind), "word")
