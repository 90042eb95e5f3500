"""Parses the request fields that change a simulated response; ignores all other fields.

Independent of profiles, times and sockets. Units: tokens, estimated as four bytes of the prompt's JSON each.
"""

import contextlib
from collections.abc import Callable
from typing import TypeVar

import msgspec

from ttft_gateway.apis.base import Api

CHOICES_MAX = 16
TOP_LOGPROBS_MAX = 20
BYTES_PER_TOKEN = 4


class RequestError(Exception):
    """An invalid request; the replica returns a 400.

    Args:
        message: the mistake and its correction.
        param: the invalid field; None: the whole body.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class FunctionSpec(msgspec.Struct, frozen=True):
    """A function: name and parameters in `tools`, only the name in `tool_choice`."""

    name: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class Tool(msgspec.Struct, frozen=True):
    """One entry of `tools`, or a `tool_choice` that names a function."""

    function: FunctionSpec = FunctionSpec()


class JsonSchema(msgspec.Struct, frozen=True):
    """`response_format.json_schema`."""

    schema: msgspec.Raw = msgspec.Raw(b"{}")


class ResponseFormat(msgspec.Struct, frozen=True):
    """`response_format`."""

    type: str = "text"
    json_schema: JsonSchema | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options`."""

    include_usage: bool = False


class ParsedRequest(msgspec.Struct, frozen=True):
    """The body of a chat completion or completion request, with the field names of the OpenAI API."""

    model: str = ""
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    temperature: float | None = None
    seed: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | Tool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    continue_final_message: bool | None = False
    service_tier: str | None = None

    @property
    def text(self) -> msgspec.Raw:
        """JSON of the prompt."""
        return self.messages or self.prompt

    @property
    def limit(self) -> int | None:
        """Requested maximum of tokens; None: no maximum."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def include_usage(self) -> bool:
        """True if the stream must end with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def fixed(self) -> bool:
        """True if the same prompt must give the same text: temperature 0, or a seed."""
        return self.temperature == 0 or self.seed is not None

    @property
    def forced_tool(self) -> FunctionSpec | None:
        """Function that `tool_choice` requires; None: none."""
        if not self.tools:
            return None
        if isinstance(self.tool_choice, Tool):
            name = self.tool_choice.function.name
            return next((tool.function for tool in self.tools if tool.function.name == name), None)
        return self.tools[0].function if self.tool_choice == "required" else None


class _Message(msgspec.Struct):
    role: str = ""
    content: str = ""


_T = TypeVar("_T")
_decode = msgspec.json.Decoder(ParsedRequest).decode
_top = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_number = msgspec.json.Decoder(float).decode
_encode = msgspec.json.Encoder().encode
_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_message = msgspec.json.Decoder(_Message).decode


def decode_body(decode: Callable[[bytes], _T], body: bytes) -> _T:
    """Decode a body; whole numbers may be written as 16.0, as servers written in Python accept.

    Raises:
        RequestError: The body is invalid.
    """
    try:
        return decode(body)
    except msgspec.MsgspecError as error:
        with contextlib.suppress(msgspec.MsgspecError):
            return decode(_encode({key: _whole(value) for key, value in _top(body).items()}))
        raise RequestError(f"the request body is invalid: {error}") from error


def _whole(value: msgspec.Raw) -> object:
    with contextlib.suppress(msgspec.MsgspecError):
        number = _number(value)
        return int(number) if number.is_integer() else value
    return value


def parse_request(api: Api, body: bytes) -> ParsedRequest:
    """Parse a request body.

    Raises:
        RequestError: The body is invalid.
    """
    request = decode_body(_decode, body)
    field = "messages" if api is Api.CHAT else "prompt"
    text = request.messages if api is Api.CHAT else request.prompt
    if not text or (api is Api.CHAT and not _opens(text, b"[")):
        expected = "a list of messages" if api is Api.CHAT else "a text or a list"
        raise RequestError(f"{field} is missing or invalid; send {expected}", field)
    if request.n is not None and not 1 <= request.n <= CHOICES_MAX:
        raise RequestError(f"n is {request.n}; send 1 to {CHOICES_MAX}", "n")
    if request.limit is not None and request.limit < 1:
        raise RequestError(f"max_tokens is {request.limit}; send at least 1", "max_tokens")
    if request.top_logprobs is not None and not 0 <= request.top_logprobs <= TOP_LOGPROBS_MAX:
        raise RequestError(f"top_logprobs is {request.top_logprobs}; send 0 to {TOP_LOGPROBS_MAX}", "top_logprobs")
    return request


def without_prefix(request: ParsedRequest) -> ParsedRequest:
    """Return a request without the beginning of the response that it is to continue."""
    if not request.continue_final_message:
        return request
    messages = msgspec.Raw(_encode(_raws(request.messages)[:-1]))
    return msgspec.structs.replace(request, messages=messages, continue_final_message=False)


def choice_count(request: ParsedRequest) -> int:
    """Return the number of choices in the response: n for each prompt of a list of prompts."""
    n = request.n or 1
    if not _opens(request.prompt, b"["):
        return n
    inner = _raws(request.prompt)
    several = inner and _opens(inner[0], b'"[')  # texts or token lists, not one token list
    return min(n * len(inner), CHOICES_MAX) if several else n


def _opens(value: msgspec.Raw, openers: bytes) -> bool:
    return len(value) > 0 and memoryview(value)[0] in openers


def prompt_and_prefix(request: ParsedRequest) -> tuple[bytes, str]:
    """Split a request into its prompt and the beginning of the response that it continues.

    Returns:
        JSON of the prompt without the closing bracket, the same bytes with and without a prefix; the prefix, empty
        without `continue_final_message`.

    Raises:
        RequestError: `continue_final_message` is set and the last message has no text or another role.
    """
    text = bytes(request.text)
    if text.startswith(b'"'):
        return text[:-1], ""  # white space at its end is a part of the text
    if not request.continue_final_message:
        return text[:-1].rstrip(), ""
    try:
        last = _raws(request.messages)[-1]
        message = _message(last)
    except (msgspec.MsgspecError, IndexError) as error:
        raise RequestError("the last message is not a text; send a text to continue", "messages") from error
    if message.role != "assistant":
        raise RequestError("the last message is not the assistant's; send an assistant message to continue", "messages")
    before = text[: text.rindex(bytes(last))]
    return before.rstrip().removesuffix(b",").rstrip(), message.content
