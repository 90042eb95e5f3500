"""What a simulated replica understands of a request: the fields that change its answer, everything else is ignored.

Knows nothing of profiles, times or sockets. Units: tokens, estimated as four bytes of the prompt's JSON each.
"""

import msgspec

from providers.base import Api

CHOICES_MAX = 16
TOP_LOGPROBS_MAX = 20
BYTES_PER_TOKEN = 4


class RequestError(Exception):
    """The request is not acceptable; becomes a 400.

    Args:
        message: what was found and what to write instead.
        param: the field at fault.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class FunctionSpec(msgspec.Struct, frozen=True):
    """A function: as a tool with its parameters, or as a tool_choice by name only."""

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
    """The body of a chat completion or completion request; names are those of the OpenAI API."""

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

    @property
    def text(self) -> msgspec.Raw:
        """The JSON of the prompt."""
        return self.messages or self.prompt

    @property
    def limit(self) -> int | None:
        """The tokens asked for, None when the client gave no bound."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def include_usage(self) -> bool:
        """The usage chunk was asked for."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def fixed(self) -> bool:
        """The same prompt must give the same text."""
        return self.temperature == 0 or self.seed is not None

    @property
    def forced_tool(self) -> FunctionSpec | None:
        """The function that must be called, None when none must."""
        if not self.tools:
            return None
        if isinstance(self.tool_choice, Tool):
            wanted = self.tool_choice.function.name
            return next((tool.function for tool in self.tools if tool.function.name == wanted), None)
        return self.tools[0].function if self.tool_choice == "required" else None


class _Message(msgspec.Struct):
    role: str = ""
    content: str = ""


_decode = msgspec.json.Decoder(ParsedRequest).decode
_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_message = msgspec.json.Decoder(_Message).decode


def parse_request(api: Api, body: bytes) -> ParsedRequest:
    """Read a request body.

    Raises:
        AskError: It cannot be answered.
    """
    try:
        request = _decode(body)
    except msgspec.MsgspecError as error:
        raise RequestError(f"the body is not a valid request: {error}") from error
    field = "messages" if api is Api.CHAT else "prompt"
    text = request.messages if api is Api.CHAT else request.prompt
    if not text or (api is Api.CHAT and not _opens(text, b"[")):
        raise RequestError(f"'{field}' is missing or not what it should be", field)
    if request.n is not None and not 1 <= request.n <= CHOICES_MAX:
        raise RequestError(f"found n = {request.n}; write a number from 1 to {CHOICES_MAX}", "n")
    if request.limit is not None and request.limit < 1:
        raise RequestError(f"found max_tokens = {request.limit}; write 1 or more", "max_tokens")
    if request.top_logprobs is not None and not 0 <= request.top_logprobs <= TOP_LOGPROBS_MAX:
        raise RequestError(
            f"top_logprobs is {request.top_logprobs}; send 0 to {TOP_LOGPROBS_MAX}", "top_logprobs"
        )
    return request


def choice_count(request: ParsedRequest) -> int:
    """How many choices the answer has: n for each prompt of a list of prompts."""
    n = request.n or 1
    if not _opens(request.prompt, b"["):
        return n
    inner = _raws(request.prompt)
    several = inner and _opens(inner[0], b'"[')  # texts or token lists, not one token list
    return min(n * len(inner), CHOICES_MAX) if several else n


def _opens(value: msgspec.Raw, openers: bytes) -> bool:
    """Whether a JSON value begins with one of these."""
    return len(value) > 0 and memoryview(value)[0] in openers


def prompt_and_prefix(request: ParsedRequest) -> tuple[bytes, str]:
    """The prompt's bytes without the closing bracket, and the beginning of the answer that must be continued.

    Returns:
        The bytes are the same whether the answer is asked for from its beginning or from a prefix on.
    """
    text = bytes(request.text)
    if not request.continue_final_message:
        return text[:-1].rstrip(), ""
    try:
        last = _raws(request.messages)[-1]
        message = _message(last)
    except (msgspec.MsgspecError, IndexError) as error:
        raise RequestError("continue_final_message needs a last message with a text", "messages") from error
    if message.role != "assistant":
        raise RequestError("continue_final_message needs an assistant's message at the end", "messages")
    before = text[: text.rindex(bytes(last))]
    return before.rstrip().removesuffix(b",").rstrip(), message.content
