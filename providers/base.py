"""The contract between the gateway and whatever speaks to a model: data and Protocols, no behaviour.

A `Stream` pushes: the reader that owns the socket calls the `Sink` on its own stack, so whoever stamps a time in a
sink method stamps the moment of receipt. Nothing here knows of races, policies or sockets.

Units: seconds of the event loop's clock, bytes, tokens.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from providers.errors import UpstreamError

Headers = Sequence[tuple[bytes, bytes]]
"""Response or request headers in the order of the wire, names in lower case."""


class Api(enum.Enum):
    """The API a client called; the value is the path below `/v1` and the metric label."""

    __hash__ = object.__hash__  # a C function; Enum's own is Python's, and these are looked up for every request

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"


class FrameKind(enum.Enum):
    """What one event of a stream is; the first that applies, in this order."""

    ERROR = "error"  # an error object, or finish_reason "error"
    DONE = "done"  # the protocol's closing event
    REFUSAL = "refusal"  # a policy answer: content filter or refusal text; ends the race like content
    CONTENT = "content"  # something generated
    FINISH = "finish"  # a finish_reason without content
    USAGE = "usage"  # token counts only
    PREAMBLE = "preamble"  # role, ping, filter results, empty deltas
    COMMENT = "comment"  # an SSE comment or an event without data
    MALFORMED = "malformed"  # data that is not JSON


class Usage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Token counts as the upstream reported them; None where it said nothing.

    Attributes:
        hidden_tokens: those of reasoning, where no event has shown any of it.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    hidden_tokens: int | None = None


class Resource(enum.Enum):
    """What a rate limit counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"  # of prompt and answer together
    PROMPT_TOKENS = "prompt_tokens"
    ANSWER_TOKENS = "answer_tokens"


class RateLimit(msgspec.Struct, frozen=True, gc=False):
    """One rate limit as a response states it; None where it said nothing usable.

    Attributes:
        resource: what it counts.
        window_s: per how much time.
        limit: how many per window.
        remaining: how many are left of it.
        reset_s: in how many seconds all of it is there again.
    """

    resource: Resource
    window_s: float
    limit: float | None = None
    remaining: float | None = None
    reset_s: float | None = None


LimitReader = Callable[[Headers], Sequence[RateLimit]]
"""Reads the rate limits that a response's headers state; never raises."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One event of an upstream stream.

    Attributes:
        kind: what it is.
        raw: the bytes to forward, in the protocol of the client, closing blank line included; as they came where the
            upstream speaks it, else made of what came, which may be several events. Empty when nothing may be
            forwarded (a usage chunk that only the gateway asked for, an event without data).
        usage: token counts, on whichever event carried them.
        error: set if and only if kind is ERROR.
        events: how many of the upstream's events it stands for; more than one only for a burst of content.
    """

    kind: FrameKind
    raw: bytes
    usage: Usage | None = None
    error: UpstreamError | None = None
    events: int = 1


class Call(msgspec.Struct, frozen=True):
    """One client request as every attempt needs it: the client's bytes and where to replace spans in them.

    Attributes:
        api: which API was called.
        body: the JSON object exactly as the client sent it.
        spans: top-level key -> [start, end) of its value in body, for every key present.
        insert_at: offset right behind the opening brace, where absent keys are inserted.
        model: the public model name asked for.
        streaming: the client asked for a stream.
        include_usage: the client asked for the usage chunk.
        choices: how many choices the answer has: `n` times the number of prompts.
        max_tokens: the bound on the answer's tokens, None when the client gave none.
        assemble: a non-streaming call may be asked as a stream and assembled (False for parameters that do not stream).
        headers: allow-listed client headers to pass on.
        repeatable: sending it twice does nothing twice but generate: nothing is kept, no tool runs at the provider.
        options: `stream_options` may be sent; False for a server that has refused it.
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

    @property
    def timed(self) -> bool:
        """The time to its first content tells how fast an upstream begins; False where it waits for a whole text."""
        return self.streaming or self.assemble or self.api is Api.EMBEDDINGS


class Sink(Protocol):
    """Where a stream pushes. After `on_end`, or after `Stream.abort()`, nothing more is called."""

    def on_headers(self, status: int, headers: Headers) -> None:
        """The final response head has been received (never a 1xx)."""

    def on_frame(self, frame: Frame) -> None:
        """One whole event has been received."""

    def on_end(self, error: UpstreamError | None) -> None:
        """The stream is over, exactly once: None after a complete answer, else what went wrong."""


class Stream(Protocol):
    """One open upstream request."""

    def pause(self) -> None:
        """Stop reading from the upstream: the client is slow."""

    def resume(self) -> None:
        """Read again."""

    def abort(self) -> None:
        """Close the connection now, without draining; idempotent. The sink hears nothing more."""


class Endpoint(Protocol):
    """One replica as the race sees it."""

    def open(self, call: Call, sink: Sink) -> Stream:
        """Send the call and return at once; all else, errors included, reaches the sink from a later loop turn."""


class EventReader(Protocol):
    """Reads the events of one upstream stream; stateful, sans-I/O."""

    @property
    def complete(self) -> bool:
        """Every choice asked for has finished, or the closing event was seen: an end of body is a clean end now."""

    @property
    def closed(self) -> bool:
        """The closing event was seen: nothing of the answer will follow."""

    def read(self, event: bytes) -> Frame:
        """Classify one whole SSE event (its closing blank line included), and give the client's bytes for it."""

    def content_run(self, data: bytes) -> tuple[int, int]:
        """How many bytes at the start of data are whole content events like those before, and how many events that is.

        Such events may be forwarded as they are without being read one by one. (0, 0): what comes must be read.
        """

    def close(self) -> Frame | None:
        """The body is over, complete and without a closing event: what a client must still get, None for nothing."""

    def read_body(self, body: bytes) -> Sequence[Frame]:
        """A 200 with a JSON body where a stream was asked for: the same answer as frames, or one ERROR frame."""


class Assembler(Protocol):
    """Builds the non-streaming answer from the frames of a stream."""

    def add(self, raw: bytes) -> None:
        """Take a frame's bytes, one event or several, in order."""

    def body(self) -> bytes:
        """The JSON body that the upstream would have sent without streaming."""


class WireProtocol(Protocol):
    """One client API as one upstream wire protocol serves it, sans-I/O: builds requests, reads events and errors."""

    def path(self, api: Api) -> str:
        """The path below the base URL."""

    def build(self, call: Call, model: str, *, stream: bool) -> bytes:
        """The request body for a replica that calls the model `model`; as a stream or not, whatever the client asked.

        Raises:
            Unsupported: this protocol cannot say what the client asks for.
        """

    def reader(self, call: Call) -> EventReader:
        """A fresh reader for one streamed answer."""

    def whole(self, call: Call, body: bytes) -> Frame:
        """A 200 that was not asked as a stream: CONTENT with the body for the client, or ERROR."""

    def error(self, status: int, headers: Headers, body: bytes) -> UpstreamError:
        """What a non-200 response means; body may be cut at 64 kB."""


class Joiner(Protocol):
    """Fits the events of another stream to what a client already has, so that it reads one valid stream."""

    @property
    def caught_up(self) -> bool:
        """All that the client has was said again: whatever is said now is new."""

    def feed(self, raw: bytes) -> bytes | None:
        """Take whole events as an attempt would forward them.

        Returns:
            What the client may get of them, often nothing; None when they say something else than it has. Nothing may
            be fed after that.
        """


class Continuation(msgspec.Struct, frozen=True):
    """A broken answer as a request of its own: go on from here.

    Attributes:
        call: the client's call with what it has been sent as the beginning of the answer.
        joiner: for the answer.
        prefill_tokens: how many tokens that beginning has, about.
    """

    call: Call
    joiner: Joiner
    prefill_tokens: int


class Transcript(Protocol):
    """What a client has been sent of one answer, as text."""

    @property
    def comparable(self) -> bool:
        """All of it is text that another answer can be compared with."""

    @property
    def tokens(self) -> int:
        """How many tokens of an answer it holds, about."""

    def add(self, raw: bytes) -> None:
        """Take whole events in the order in which they were sent."""

    def joiner(self) -> Joiner:
        """For another answer to the same call, from its beginning; nothing may be added any more."""

    def continuation(self) -> Continuation | None:
        """For an answer that goes on behind this; None where that would not be right."""


class Recoverer(Protocol):
    """What is known of the streams of one client API when one of them breaks; an API without one has no recovery."""

    def fixed(self, call: Call) -> bool:
        """The call asks for the same answer each time."""

    def continuable(self, call: Call) -> bool:
        """Nothing in the call is against going on with its answer elsewhere."""

    def transcript(self, call: Call) -> Transcript:
        """An empty one, for the answer to a call."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """One HTTP/1.1 request, ready to be written.

    Attributes:
        head: request line and headers with the closing blank line.
        body: the body, its length stated in head.
    """

    head: bytes
    body: bytes

    def __repr__(self) -> str:
        return "Request(...)"  # head carries the replica's key, body the prompt


class Burst:
    """One read of a socket, of any upstream: whatever it leads to leaves in one write, when all of it was looked at.

    Attributes:
        is_open: a read is being looked at; who has something to send by its end adds it to `at_end`.
        at_end: called once each when it is over, in order; must not raise.
    """

    __slots__ = ("at_end", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self.at_end: list[Callable[[], None]] = []

    def close(self) -> None:
        """The read is over."""
        self.is_open = False
        if self.at_end:
            at_end, self.at_end = self.at_end, []
            for send in at_end:
                send()


class HttpSink(Protocol):
    """Where an HTTP client pushes one response. After `on_close`, or after `abort()`, nothing more is called."""

    def on_response(self, status: int, headers: Headers) -> None:
        """The final response head (never a 1xx)."""

    def on_body(self, data: bytes) -> None:
        """A piece of the body, unframed."""

    def on_close(self, error: UpstreamError | None) -> None:
        """The response is over, exactly once: None when its framing says that it is complete."""


class HttpStream(Stream, Protocol):
    """One open HTTP request."""

    @property
    def received(self) -> bool:
        """The end of the response is here: `on_close` follows at once. False where that is not known."""


class HttpClient(Protocol):
    """A streaming HTTP client to one origin."""

    def send(self, request: Request, sink: HttpSink) -> HttpStream:
        """Write the request on a pooled or new connection; never calls the sink before it returns."""
