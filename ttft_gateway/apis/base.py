"""The contract between the gateway and the upstream clients: data and Protocols, no behaviour.

A `Stream` pushes: the reader that owns the socket calls the `Sink` on its own stack, so a time taken in a sink method
is the time of receipt. Nothing here depends on races, policies or sockets.

Units: seconds of the event loop's clock, bytes, tokens.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, Protocol

import msgspec

from ttft_gateway.apis.errors import UpstreamError
from ttft_gateway.apis.read_turns import ReadTurns
from ttft_gateway.apis.upload import Upload

Headers = Sequence[tuple[bytes, bytes]]
"""Response or request headers in the order in which they were sent, names in lower case."""

FirstToken = Literal["any", "work", "answer"]
"""The event that is timed as the first token: with "any" all generated content, with "work" also a sign of work, with
"answer" no reasoning."""

OnAnswerId = Callable[[str, str], None]
"""Receives the owner of a call (`Call.owner`) and the id of its answer, for each answer that can be continued by id."""

MAX_TOKENS_DEFAULT: Final = 32_000
"""Bound on an answer where the client sets none and the API requires one; every current model accepts it."""

CONNECT_S: Final = 3.0
"""Bound on DNS, TCP and TLS of a connection together."""

STALL_S: Final = 20.0
"""Longest silence in a stream of text, where none is configured."""


class FastEnum(enum.Enum):
    """Base of enums that are looked up for every request.

    On Python 3.11, reading a member of any enum in its class takes 900 instructions, on 3.13 220. So a module of the
    path of each request or event binds the members that it compares on the usual way, as in `_OVER = State.OVER`.
    """

    __hash__ = object.__hash__  # a C function; `Enum.__hash__` is Python code


class Api(FastEnum):
    """The API a client called; the value is the path below `/v1` and the metric label."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    MODERATIONS = "moderations"
    TOKENIZE = "tokenize"


PASSED_THROUGH = frozenset({Api.RERANK, Api.MODERATIONS, Api.TOKENIZE})
"""APIs whose answers are whole, come soon, and are no sample of how fast an upstream starts."""


Prefix = tuple[Api, bool]
"""A kind of answer that a replica may be able to continue from its beginning: the client's API, and True with tools."""


class FrameKind(FastEnum):
    """The kind of one event of a stream; the first that applies, in this order."""

    ERROR = "error"  # an error object, finish_reason "error", or an unreadable event with a piece of the answer
    DONE = "done"  # the protocol's closing event
    REFUSAL = "refusal"  # content filter or refusal text; ends the race like content
    CONTENT = "content"  # generated output
    FINISH = "finish"  # a finish_reason without content
    USAGE = "usage"  # token counts only
    WORK = "work"  # a sign of work: an output item or a block of thinking or text begins, still empty
    PREAMBLE = "preamble"  # role, ping, filter results, empty deltas
    COMMENT = "comment"  # an SSE comment or an event without data
    MALFORMED = "malformed"  # data that is not a JSON object, without a piece of the answer


FIRST_CONTENT: Final = frozenset({FrameKind.CONTENT, FrameKind.REFUSAL})
"""The kinds of the events that end a race: the first event of one of them is the first content of an answer."""


class Phase(FastEnum):
    """The kind of the output that an event has or begins; the value is the word in errors."""

    TEXT = "text"
    THINKING = "reasoning"  # also a tool that the provider runs
    TOOL_CALL = "tool call"


class Usage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Token counts as the upstream reported them; None for a count that it did not report.

    Attributes:
        hidden_reasoning: True if the answer has reasoning of which no event had any text.
        tier: tier that the upstream has used; None if it names none.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    hidden_reasoning: bool = False
    tier: str | None = None


class Resource(enum.Enum):
    """The unit that a rate limit counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"  # of prompt and answer together
    PROMPT_TOKENS = "prompt_tokens"
    ANSWER_TOKENS = "answer_tokens"


class RateLimit(msgspec.Struct, frozen=True, gc=False):
    """One rate limit from response headers; None for a value that is absent or unusable.

    Attributes:
        resource: the unit counted.
        window_s: length of the limit's window.
        limit: the maximum per window.
        remaining: the unused part of `limit`.
        reset_s: time until the whole limit is available again.
    """

    resource: Resource
    window_s: float
    limit: float | None = None
    remaining: float | None = None
    reset_s: float | None = None


LimitReader = Callable[[Headers], Sequence[RateLimit]]
"""Reads the rate limits in a response's headers; never raises."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One event of an upstream stream.

    Attributes:
        kind: the event's kind.
        raw: the bytes to forward, in the client's protocol, closing blank line included: the upstream's own bytes if
            it has the client's API, else their translation, which may be several events. Empty if nothing may be
            forwarded (a usage chunk that only the gateway requested, an event without data).
        usage: token counts in this event, None if it has none.
        error: set if and only if kind is ERROR.
        phase: the kind of the output that the event has or begins; None for text, and for an event that begins none.
    """

    kind: FrameKind
    raw: bytes
    usage: Usage | None = None
    error: UpstreamError | None = None
    phase: Phase | None = None


HOPS: Final = b"x-ttft-hops"
"""Header with the number of gateways that a request has gone through; without it a loop of gateways has no end."""


class Call(msgspec.Struct, frozen=True):
    """One client request as every attempt needs it: the client's bytes and where to replace spans in them.

    Attributes:
        api: the API that was called.
        body: the JSON object exactly as the client sent it.
        spans: top-level key -> [start, end) of its value in body, for every key present.
        insert_at: offset just after the opening brace, where absent keys are inserted.
        model: the public model name in the request.
        streaming: the client requested a stream.
        include_usage: the client requested the usage chunk.
        choices: number of choices in the answer: `n` times the number of prompts.
        max_tokens: the bound on the answer's tokens, None if the request has none.
        assemble: a non-streaming call may be sent as a stream and assembled (False for parameters that do not stream).
        headers: allow-listed client headers to pass on.
        repeatable: sending the call twice has no effect beyond generating twice: the provider stores nothing and runs
            no tool.
        options: `stream_options` may be sent; False for a server that has rejected it.
        owner: name of the caller's API key, which shares the event loop with other keys, and to which a stored answer
            belongs.
        hops: number of gateways that the request has gone through.
        continues: the body has the beginning of the answer, which the replica has to continue.
    """

    api: Api
    body: bytes
    spans: Mapping[str, tuple[int, int]]
    insert_at: int
    model: str
    streaming: bool
    include_usage: bool = False
    choices: int = 1
    max_tokens: int | None = None
    assemble: bool = True
    headers: tuple[tuple[bytes, bytes], ...] = ()
    repeatable: bool = True
    options: bool = True
    owner: str = ""
    hops: int = 0
    continues: bool = False

    @property
    def timed(self) -> bool:
        """The time to its first content measures how fast an upstream starts; False if that is the whole answer."""
        return self.streaming or self.assemble or self.api is Api.EMBEDDINGS


class Sink(Protocol):
    """Receives what a stream pushes. After `on_end`, or after `Stream.abort()`, nothing more is called."""

    def on_headers(self, status: int, headers: Headers) -> None:
        """The final response head has been received (never a 1xx)."""

    def on_content(self, raw: bytes, events: int, phase: Phase | None) -> None:
        """Content events in a row, without token counts, have been received.

        Args:
            raw: their bytes for the client.
            events: their number.
            phase: the phase of the last one, as `Frame.phase`.
        """

    def on_frame(self, frame: Frame) -> None:
        """One whole event has been received, of any kind."""

    def on_end(self, error: UpstreamError | None) -> None:
        """The stream is over; called exactly once, with None after a complete answer, else with the error."""


class Flow(Protocol):
    """Bytes on their way from an upstream."""

    def pause(self) -> None:
        """Stop reading from the upstream: the client is slow."""

    def resume(self) -> None:
        """Read again."""

    def abort(self) -> None:
        """Close the connection now, without draining; idempotent. The sink is not called again."""


class Stream(Flow, Protocol):
    """One open upstream request."""

    def finish(self) -> bool:
        """End an answer that is whole already, without waiting for token counts or a closing event.

        Returns:
            True if the sink was called with the end; False if the answer is not whole, and nothing was done.
        """


class Endpoint(Protocol):
    """One replica as the race sees it."""

    def open(self, call: Call, sink: Sink) -> Stream:
        """Send the call without waiting; the response, errors included, reaches the sink from a later loop turn."""


class ContentRun(msgspec.Struct, frozen=True):
    """The form of content events that differ in nothing but their text, which is plain and not empty.

    Such an event is the same JSON with another string in one place: content again, which may be forwarded unread.

    Attributes:
        prefix, suffix: the bytes of an event before and after its text.
        phase: the phase of each of the events, as `Frame.phase`.
        text_at: the place of the text in an event.
        text_of_line: returns the text of an event's first line, line end included; the second one is blank.
    """

    prefix: bytes
    suffix: bytes
    text_at: slice
    text_of_line: Callable[[bytes], bytes]
    phase: Phase | None = None


class EventReader(Protocol):
    """Reads the events of one upstream stream; stateful, sans-I/O."""

    @property
    def complete(self) -> bool:
        """The answer has the finish of its API (see `endings.py`); no closing event and no error sets this alone."""

    @property
    def resumed(self) -> bool:
        """Content followed the finish, so only a closing event or the proper end of the body ends the answer."""

    @property
    def closed(self) -> bool:
        """The closing event was seen: nothing of the answer will follow."""

    @property
    def run(self) -> ContentRun | None:
        """The form of the stream's content events; None while no run of them can be recognised."""

    def read(self, event: bytes) -> Frame:
        """Classify one whole SSE event (its closing blank line included), and return the client's bytes for it."""

    def close(self) -> Frame | None:
        """End a complete answer that had no closing event: the last frame for the client, None for none."""

    def read_body(self, body: bytes) -> Sequence[Frame]:
        """Read a 200 with a JSON body in response to a stream request: the answer as frames, or one ERROR frame."""


class Assembler(Protocol):
    """Builds the non-streaming answer from the frames of a stream."""

    def add(self, raw: bytes) -> None:
        """Take a frame's bytes, one event or several, in order."""

    def body(self) -> bytes:
        """The JSON body that the upstream would have sent without streaming."""


class WireProtocol(Protocol):
    """One client API over one upstream API, sans-I/O: builds requests, reads events and errors."""

    def path(self, api: Api, model: str, *, stream: bool) -> str:
        """The path below the base URL, of a request for a stream or for a whole answer of a model."""

    def build(self, call: Call, model: str, *, stream: bool) -> "Body":
        """Build the request body for a replica that calls the model `model`; `stream` overrides the client's choice.

        Raises:
            Unsupported: the upstream's API has no counterpart for a field of the request.
        """

    def reader(self, call: Call) -> EventReader:
        """Make a reader for one streamed answer."""

    def whole(self, call: Call, body: bytes) -> Frame:
        """Read a 200 that was not requested as a stream: CONTENT with the body for the client, or ERROR."""

    def outlined(self, outline: bytes) -> Frame | None:
        """Read a 200 with JSON that is too heavy to be decoded, by its outline (whole_answer.py).

        Returns:
            CONTENT without bytes if the answer is forwarded unchanged, or ERROR; None if it has to be converted.
        """

    def error(self, status: int, headers: Headers, body: bytes) -> UpstreamError:
        """Read a non-200 response; body may be cut at 64 kB."""


Body = bytes | tuple[bytes | memoryview, ...]
"""The body of a request to an upstream: a large one in pieces, most of which are views of the client's own bytes."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """One HTTP/1.1 request, ready to be written.

    Attributes:
        head: request line and headers with the closing blank line.
        body: the body, its length stated in head; an `Upload` of unknown length is sent in chunks.
    """

    head: bytes
    body: Body | Upload

    def __repr__(self) -> str:
        return "Request(...)"  # head carries the replica's key, body the prompt


class Burst:
    """One read of an upstream's socket: the events in it reach each client in one write, after all of them were read.

    Attributes:
        is_open: a read is being processed; code with bytes to send adds a callback to `at_end`.
        is_last: nothing of the read follows the piece that is being pushed, so that its bytes need not wait.
        at_end: callbacks, each called once when the read is over, in order; must not raise.
        turns: shares the loop between streams with many bytes a read.
    """

    __slots__ = ("at_end", "is_last", "is_open", "turns")

    def __init__(self) -> None:
        self.is_open = self.is_last = False
        self.at_end: list[Callable[[], None]] = []
        self.turns = ReadTurns()


class HttpSink(Protocol):
    """Receives one response from an HTTP client. After `on_close`, or after `abort()`, nothing more is called."""

    def on_response(self, status: int, headers: Headers) -> None:
        """The final response head (never a 1xx)."""

    def on_body(self, data: bytes) -> None:
        """A piece of the body, unframed."""

    def on_close(self, error: UpstreamError | None) -> None:
        """The response is over; called exactly once, with None if its framing shows that it is complete."""


class HttpStream(Flow, Protocol):
    """One open HTTP request."""

    @property
    def received(self) -> bool:
        """The end of the response was received, and `on_close` is next. False if the client cannot detect it."""

    @property
    def read_began_s(self) -> float:
        """Time at which the present read of the socket began, if it brought many bytes; else 0."""


class HttpClient(Protocol):
    """A streaming HTTP client to one origin."""

    def send(self, request: Request, sink: HttpSink) -> HttpStream:
        """Write the request on a pooled or new connection; never calls the sink before it returns."""
