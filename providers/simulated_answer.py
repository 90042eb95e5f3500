"""What a simulated replica says: deterministic text, tool calls and small JSON documents, token by token.

An `Answer` is the content only; simulated_render.py puts it into events or a JSON body. The text of a choice is a
function of a key, so two replicas with one seed say the same to a prompt at temperature 0. Units: tokens; one piece of
text is one token.
"""

import json
import random
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Literal

import msgspec

from providers.base import Api, Usage
from providers.simulated_ask import BYTES_PER_TOKEN, Ask, AskError, choices, prompt_and_prefix

Said = Literal["content", "refusal", "tool_calls"]

_WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so said what up its "
    "about other time new some could né Zürich 日本 🙂"
).split()
_PIECE = 6  # characters of a JSON document or tool arguments in one token
_ANY_JSON = msgspec.Raw(b'{"type": "object", "properties": {"answer": {}}}')
_DEPTH_MAX = 16
_SAMPLES_MAX = 1000  # values in a document made from a schema, which may refer to itself


class Choice(msgspec.Struct, frozen=True):
    """One choice of an answer.

    Attributes:
        pieces: what is said, token by token; for a tool call its arguments.
        finish: the finish_reason.
        said: what the pieces are.
        reasoning: thinking tokens before it.
        tool: id and name of the function called, None unless said is "tool_calls".
    """

    pieces: tuple[str, ...]
    finish: str = "stop"
    said: Said = "content"
    reasoning: tuple[str, ...] = ()
    tool: tuple[str, str] | None = None


class Answer(msgspec.Struct, frozen=True):
    """A whole answer.

    Attributes:
        ident: the completion's id.
        model: the model's name as the request gave it.
        choices: at least one.
        usage: token counts.
    """

    ident: str
    model: str
    choices: tuple[Choice, ...]
    usage: Usage


class Lengths(msgspec.Struct, frozen=True):
    """How long answers are: tokens without a max_tokens, tokens at most, and thinking tokens before the text."""

    tokens: int
    tokens_max: int
    reasoning: int


def compose(api: Api, ask: Ask, rng: random.Random, seed: int, lengths: Lengths, cached_tokens: int) -> Answer:
    """Decide what is answered.

    Args:
        api: which API was called.
        ask: the request.
        rng: drawn from once, and the draw decides the text unless the request wants it repeatable.
        seed: of the replica.
        lengths: of the answer.
        cached_tokens: prompt tokens found in the prefix cache.

    Raises:
        AskError: The request is for something that cannot be answered.
    """
    draw = rng.getrandbits(64)
    prompt, prefix = prompt_and_prefix(ask)
    key = zlib.crc32(prompt, (seed ^ (ask.seed or 0)) & 0xFFFFFFFF) if ask.fixed else draw
    said = tuple(_choice(ask, key + index * 7919, lengths, prefix) for index in range(choices(ask)))
    reasoning = sum(len(choice.reasoning) for choice in said)
    completion = reasoning + sum(len(choice.pieces) for choice in said)
    usage = Usage(len(ask.text) // BYTES_PER_TOKEN + 1, completion, cached_tokens, reasoning)
    kind = "chatcmpl" if api is Api.CHAT else "cmpl"
    return Answer(f"{kind}-{draw:016x}", ask.model, said, usage)


def _choice(ask: Ask, key: int, lengths: Lengths, prefix: str) -> Choice:
    """One choice: a forced tool call, a JSON document, or text."""
    reasoning = tuple(islice(_words(key + 1), lengths.reasoning))
    tool = ask.forced_tool
    if tool is not None:
        call = (f"call_{key & 0xFFFFFFFF:08x}", tool.name)
        return Choice(_document(tool.parameters), "tool_calls", "tool_calls", reasoning, call)
    if ask.response_format is not None and ask.response_format.type != "text":
        described = ask.response_format.json_schema
        return Choice(_document(_ANY_JSON if described is None else described.schema), reasoning=reasoning)
    pieces, used = _continued(key, prefix) if prefix else (_words(key), 0)
    if ask.limit is None:
        return Choice(tuple(islice(pieces, max(0, lengths.tokens - used))), reasoning=reasoning)
    return Choice(tuple(islice(pieces, min(ask.limit, lengths.tokens_max))), "length", reasoning=reasoning)


def _words(key: int) -> Iterator[str]:
    """An endless text; the pieces joined are the text."""
    state = key
    space = ""
    while True:
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF  # the generator of Numerical Recipes
        yield space + _WORDS[state >> 26]
        space = " "


def _continued(key: int, prefix: str) -> tuple[Iterator[str], int]:
    """The text after a prefix of it, and how many tokens the prefix was; another text if it never was a prefix."""
    words = _words(key)
    rest = prefix
    used = 0
    while rest:
        word = next(words)
        used += 1
        if word.startswith(rest) and word != rest:
            return _after(word[len(rest) :], words), used - 1
        if not rest.startswith(word):
            return _words(zlib.crc32(prefix.encode(), key & 0xFFFFFFFF)), 0
        rest = rest[len(word) :]
    return words, used


def _after(first: str, words: Iterator[str]) -> Iterator[str]:
    yield first
    yield from words


def _document(schema: msgspec.Raw) -> tuple[str, ...]:
    """The tokens of a JSON document that the schema allows."""
    try:
        text = json.dumps(sample(msgspec.json.decode(schema)))
    except (TypeError, AttributeError, LookupError) as error:
        raise AskError("a JSON schema in the request cannot be read") from error
    return tuple(text[start : start + _PIECE] for start in range(0, len(text), _PIECE))


def sample(schema: object) -> object:
    """A small document that a JSON schema allows, for the commoner schemas; anything else gives a word."""
    definitions = schema.get("$defs") if isinstance(schema, Mapping) else None
    return _sample(schema, definitions if isinstance(definitions, Mapping) else {}, iter(range(_SAMPLES_MAX)), _DEPTH_MAX)


def _sample(schema: object, definitions: Mapping[str, object], budget: Iterator[int], depth: int) -> object:
    if not isinstance(schema, Mapping) or depth == 0 or next(budget, None) is None:
        return "word"

    def inner(part: object) -> object:
        return _sample(part, definitions, budget, depth - 1)

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
