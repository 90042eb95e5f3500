"""Reads the fields of OpenAI's APIs, except the Responses API, in one typed decode. Pure. Units: tokens.

Chat completions, legacy completions and embeddings are read; of rerank, moderations and tokenize, which are passed
through, only the model: the replica judges the other fields, which have different names on different servers. A request
for embeddings or one that is passed through is never hedged: its answer comes as a whole, in milliseconds.
"""

from typing import Final

import msgspec

from ttft_gateway.apis.base import Api
from ttft_gateway.requests import arrays as inbound_arrays
from ttft_gateway.requests import field_errors as inbound_fields
from ttft_gateway.requests.parsed import AnyArray, NumberLimits, ParsedFields, RawFields, without_effect


class StreamOptions(msgspec.Struct, gc=False):
    """`stream_options`; other keys are passed on unread."""

    include_usage: bool | None = None


class Tool(msgspec.Struct, gc=False):
    """A tool that the model may call."""

    type: str | None = None


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str | AnyArray | None = None


class _Fields(msgspec.Struct, gc=False):
    """The fields that both APIs share; null counts as absent."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | float | None = None
    best_of: int | float | None = None
    max_tokens: int | float | None = None
    max_completion_tokens: int | float | None = None
    tools: list[Tool] | None = None

    def is_within(self, bounds: NumberLimits) -> bool:
        """Return True if all fields are present, consistent and within their limits."""
        n_max, tokens_max = bounds.n_max, bounds.max_tokens_max
        return (
            bool(self.model)
            and (self.n is None or (1 <= self.n <= n_max and self.n % 1 == 0))
            and (self.best_of is None or (1 <= self.best_of <= n_max and self.best_of % 1 == 0))
            and (self.max_tokens is None or (1 <= self.max_tokens <= tokens_max and self.max_tokens % 1 == 0))
            and (
                self.max_completion_tokens is None
                or (1 <= self.max_completion_tokens <= tokens_max and self.max_completion_tokens % 1 == 0)
            )
            and (self.stream_options is None or self.stream is True)
        )


class _Chat(_Fields, gc=False):
    messages: list[_Message] | None = None


class _Completions(_Fields, gc=False):
    prompt: str | AnyArray | None = None


class _Embeddings(msgspec.Struct, gc=False):
    model: str | None = None
    input: str | AnyArray | None = None
    stream: bool | None = None


class _PassedThrough(msgspec.Struct, gc=False):
    model: str | None = None


_decode_chat = msgspec.json.Decoder(_Chat).decode
_decode_completions = msgspec.json.Decoder(_Completions).decode
_decode_embeddings = msgspec.json.Decoder(_Embeddings).decode
_decode_passed_through = msgspec.json.Decoder(_PassedThrough).decode

# Work that must not be done twice: data that the provider stores, and actions that the provider takes itself.
_NOT_REPEATABLE: Final = frozenset({"background", "plugins", "search_parameters", "store", "web_search_options"})
# Fields with results that a stream lacks, or has in another form than a non-streaming body.
_NOT_STREAMED: Final = frozenset(
    {
        "audio",  # another format in streams
        "deferred",
        "echo",
        "kv_transfer_params",
        "modalities",
        "prompt_logprobs",
        "return_hidden_states",
        "return_token_ids",
        "use_beam_search",
    }
)
# Without one of these, only the model and the messages need a check.
_CHECKED: Final = frozenset(_Fields.__struct_fields__) - {"model", "stream"} | _NOT_REPEATABLE | _NOT_STREAMED
_MESSAGES: Final = ("messages",)
_CLIENT_TOOLS: Final = frozenset({"function", "custom", None})
_PROMPT: Final = ("query", "documents", "texts", "input", "prompt", "messages", "content")  # of any API passed through


def read_chat(body: bytes, raws: RawFields, bounds: NumberLimits) -> ParsedFields:
    """Read the fields of a chat completions body.

    Raises:
        InvalidRequest: the fields are invalid.
    """
    reason = "its fields are inconsistent"
    try:
        fields = _decode_chat(body)
        messages = fields.messages
        if messages is not None and len(messages) > inbound_fields.MESSAGES_MAX:
            raise inbound_fields.too_long("messages", inbound_fields.MESSAGES_MAX, len(messages))
        if messages and fields.model and _CHECKED.isdisjoint(raws):
            return ParsedFields(fields.model, fields.stream is True, _MESSAGES)
        inbound_fields.check_length("tools", fields.tools, inbound_fields.TOOLS_MAX)
        if fields.is_within(bounds) and messages:
            return _parsed(fields, 1, _MESSAGES, raws)
    except msgspec.ValidationError as error:
        reason = str(error)
    raise inbound_fields.wrong_field(Api.CHAT, raws, _maxima(bounds), reason)


def read_completions(body: bytes, raws: RawFields, bounds: NumberLimits) -> ParsedFields:
    """Read the fields of a legacy completions body.

    Raises:
        InvalidRequest: the fields are invalid.
    """
    reason = "its fields are inconsistent"
    try:
        fields = _decode_completions(inbound_arrays.without_prompts("prompt", body, raws))
        inbound_fields.check_length("tools", fields.tools, inbound_fields.TOOLS_MAX)
        prompts = inbound_arrays.count_prompts("prompt", fields.prompt, raws)
        if fields.is_within(bounds) and prompts:
            return _parsed(fields, prompts, ("prompt",), raws)
    except msgspec.ValidationError as error:
        reason = str(error)
    raise inbound_fields.wrong_field(Api.COMPLETIONS, raws, _maxima(bounds), reason)


def read_embeddings(body: bytes, raws: RawFields, _bounds: NumberLimits) -> ParsedFields:
    """Read the fields of an embeddings body.

    Raises:
        InvalidRequest: the fields are invalid.
    """
    reason = "its fields are inconsistent"
    try:
        fields = _decode_embeddings(inbound_arrays.without_prompts("input", body, raws))
        is_uniform = fields.input and inbound_arrays.count_prompts("input", fields.input, raws)
        if fields.model and is_uniform and fields.stream is not True:
            return ParsedFields(model=fields.model, streaming=False, prompt=("input",), assemble=False)
    except msgspec.ValidationError as error:
        reason = str(error)
    raise inbound_fields.wrong_field(Api.EMBEDDINGS, raws, {}, reason)


def read_passed_through(body: bytes, raws: RawFields, _bounds: NumberLimits) -> ParsedFields:
    """Read the model of a body that is passed through.

    Raises:
        InvalidRequest: the body has no valid model.
    """
    try:
        model = _decode_passed_through(body).model
    except msgspec.ValidationError:
        model = None
    if not model:
        raise inbound_fields.wrong_model(raws)
    prompt = tuple(key for key in _PROMPT if key in raws)
    return ParsedFields(model=model, streaming=False, prompt=prompt, assemble=False, hedgeable=False)


def _parsed(fields: _Fields, prompts: int, prompt: tuple[str, ...], raws: RawFields) -> ParsedFields:
    if fields.stream_options is not None:
        inbound_fields.check_size("stream_options", raws)
    tokens = fields.max_completion_tokens or fields.max_tokens
    return ParsedFields(
        model=fields.model or "",
        streaming=fields.stream is True,
        prompt=prompt,
        include_usage=fields.stream_options is not None and fields.stream_options.include_usage is True,
        choices=int(fields.n or 1) * prompts,
        max_tokens=None if tokens is None else int(tokens),
        assemble=(fields.best_of or 1) == 1 and without_effect(raws, _NOT_STREAMED),
        hedgeable=without_effect(raws, _NOT_REPEATABLE)
        and (fields.tools is None or all(tool.type in _CLIENT_TOOLS for tool in fields.tools)),
    )


def _maxima(bounds: NumberLimits) -> dict[str, int]:
    return {
        "n": bounds.n_max,
        "best_of": bounds.n_max,
        "max_tokens": bounds.max_tokens_max,
        "max_completion_tokens": bounds.max_tokens_max,
    }
