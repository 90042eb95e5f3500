"""A client's request body, read once: what the race, the policies and every attempt need to know of it. Pure.

The top level is decoded into raw values, which checks the whole JSON and gives each value's length; where the values
stand follows from one walk over the keys. No key may stand there twice: the gateway and an upstream could take
different ones for the model or the stream flag. A second, typed decode reads the few fields that matter; whatever else
was sent goes to the upstream as it is. What is wrong with a request is worded in `gateway.mistakes`.

Knows nothing of models, keys or HTTP but headers. Units: bytes, seconds, tokens.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway import mistakes
from gateway.hedging.outcomes import Denial
from providers.base import Api, Call, Headers

KEYS_MAX: Final = 200  # at the top level; the API has some 40
MESSAGES_MAX: Final = 100_000
PROMPTS_MAX: Final = 2_048  # of one completions call; each gets its own answer


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on numbers in a request.

    Attributes:
        n_max: of `n` and `best_of`.
        max_tokens_max: of `max_tokens` and `max_completion_tokens`.
    """

    n_max: int
    max_tokens_max: int


@dataclass(frozen=True, slots=True)
class Inbound:
    """One request as it came in.

    Attributes:
        call: what every attempt needs.
        prompt: the raw bytes of `messages` or `prompt`, for estimates.
        hedge_off: why it may not be hedged, None when it may.
        deadline_s: the client waits no longer than this, None when it did not say.
    """

    call: Call
    prompt: bytes
    hedge_off: Denial | None
    deadline_s: float | None


class _StreamOptions(msgspec.Struct, gc=False):
    include_usage: bool | None = None


class _Tool(msgspec.Struct, gc=False):
    type: str | None = None


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str | list[msgspec.Raw] | None = None


class _Fields(msgspec.Struct, gc=False):
    """What both APIs share; null counts as absent."""

    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tools: list[_Tool] | None = None

    def within(self, bounds: Bounds) -> bool:
        """All is there, within its bounds, and goes together."""
        n_max, tokens_max = bounds.n_max, bounds.max_tokens_max
        return (
            bool(self.model)
            and (self.n is None or 1 <= self.n <= n_max)
            and (self.best_of is None or 1 <= self.best_of <= n_max)
            and (self.max_tokens is None or 1 <= self.max_tokens <= tokens_max)
            and (self.max_completion_tokens is None or 1 <= self.max_completion_tokens <= tokens_max)
            and (self.stream_options is None or self.stream is True)
        )


class _Chat(_Fields, gc=False):
    messages: list[_Message] | None = None

    def prompts(self) -> int:
        """How many prompts are asked, 0 for none or too many."""
        return 1 if self.messages and len(self.messages) <= MESSAGES_MAX else 0


class _Completions(_Fields, gc=False):
    prompt: str | list[str | int | list[int]] | None = None
    prompt_embeds: msgspec.Raw | None = None  # vLLM: instead of a prompt

    def prompts(self) -> int:
        """How many prompts are asked, 0 for none, too many, or texts mixed with token numbers."""
        if isinstance(self.prompt, list):
            kinds = set(map(type, self.prompt))
            count = 1 if kinds == {int} else len(self.prompt)
            return count if len(kinds) == 1 and count <= PROMPTS_MAX else 0
        return 0 if self.prompt is None and self.prompt_embeds is None else 1


_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_chat = msgspec.json.Decoder(_Chat).decode
_read_completions = msgspec.json.Decoder(_Completions).decode
_read_key = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode

_SPACE = rb"[ \t\n\r]*+"
_ENTRY = re.compile(rb'%b[{,]%b"([^"\\]*+(?:\\.[^"\\]*+)*+)"%b:%b' % (_SPACE, _SPACE, _SPACE, _SPACE)).match

# Work that must not be done twice: what is kept by the provider, and what the provider does on its own.
_ONCE: Final = frozenset({"background", "plugins", "search_parameters", "store", "web_search_options"})
# What a stream does not tell, or tells in another form than the body would.
_UNSTREAMED: Final = frozenset(
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
_AS_IF_ABSENT: Final = frozenset({b"null", b"false", b'["text"]'})
_CLIENT_TOOLS: Final = frozenset({"function", "custom", None})


def parse(api: Api, body: bytes, headers: Headers, bounds: Bounds, passed_headers: frozenset[bytes]) -> Inbound:
    """Read one request.

    Args:
        api: which API was called.
        body: the whole request body.
        headers: of the request, names in lower case.
        bounds: on numbers in the body.
        passed_headers: names of client headers to pass on.

    Raises:
        BadRequest: it cannot be served; says what was found, where, and what to send instead.
    """
    given = dict(headers)
    mistakes.check_headers(given)
    raws, spans = _located(body)
    fields = _typed(api, body, raws, bounds)
    choices = (fields.n or 1) * fields.prompts()
    streaming = fields.stream is True
    options = fields.stream_options
    assemble = (fields.best_of or 1) == 1 and _absent(raws, _UNSTREAMED)
    passed = () if passed_headers.isdisjoint(given) else tuple(pair for pair in headers if pair[0] in passed_headers)
    hedgeable = (
        given.get(b"x-ttft-hedge") != b"off"
        and choices == 1
        and (streaming or assemble)
        and _absent(raws, _ONCE)
        and (fields.tools is None or all(tool.type in _CLIENT_TOOLS for tool in fields.tools))
    )
    call = Call(
        api,
        body,
        spans,
        body.index(b"{") + 1,
        fields.model or "",
        streaming,
        options is not None and options.include_usage is True,
        choices,
        fields.max_completion_tokens or fields.max_tokens,
        assemble,
        passed,
    )
    start, end = spans.get("messages" if api is Api.CHAT else "prompt", (0, 0))
    return Inbound(call, body[start:end], None if hedgeable else Denial.OFF, _deadline_s(given))
