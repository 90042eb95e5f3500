"""Reads from one HTTP request what a policy needs: whether it may be hedged, its population, its first event. Pure.

A population is a set of requests with comparable times to the first event: of one model and API at an origin, or of one
endpoint (`rules.py`). The rules for bodies of LLM APIs are the gateway's (`ttft_gateway.requests`).

    request                                    raced on
    POST .../chat/completions, "stream": true  the first content event
    POST .../embeddings                        the headers of a 2xx
    POST of these APIs without a stream        never: the whole answer takes the time
    GET, HEAD, OPTIONS                         the headers of a response that is no error
    other methods                              never, unless `x-ttft-hedge: on` and an idempotency key are set
    any request with `Upgrade`                 never: the connection is the answer
    with credentials that are accepted once    never: Digest, OAuth 1, DPoP
    GET that accepts a stream of events        never: a subscription, which a second one would double
    any request for which a rule is set        the event of the rule
"""

import enum
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import msgspec

from ttft_gateway.apis.base import Api, Call
from ttft_gateway.client.config import First
from ttft_gateway.client.rules import Addressed, PopulationName, Rules
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.requests.errors import InvalidRequest

if TYPE_CHECKING:
    from ttft_gateway.requests.parsed import NumberLimits, ParsedFields

HEDGE_HEADER: Final = b"x-ttft-hedge"
_RETRY_HEADER: Final = b"x-stainless-retry-count"  # of the SDKs of OpenAI and Anthropic
_KEY_HEADER: Final = b"idempotency-key"
_UPGRADE_HEADER: Final = b"upgrade"
_ACCEPT_HEADER: Final = b"accept"
_AUTH_HEADER: Final = b"authorization"
_PROOF_HEADER: Final = b"dpop"  # RFC 9449
_ONCE: Final = (b"digest", b"oauth ")  # schemes with a number or nonce that a server accepts once: RFC 7616, RFC 5849
_HEADERS_READ: Final = (
    HEDGE_HEADER,
    _RETRY_HEADER,
    _KEY_HEADER,
    _UPGRADE_HEADER,
    _ACCEPT_HEADER,
    _AUTH_HEADER,
    _PROOF_HEADER,
)
_EVENTS: Final = b"text/event-stream"  # as a GET of EventSource or MCP accepts it
NAMES_MAX: Final = 128  # sets of header names that are remembered with the places of the headers read
name_of: Final = itemgetter(0)
"""Returns the name of a header."""

_BYTES_A_TOKEN: Final = 4.0
_NAME_MAX: Final = 200  # characters of a model's name that identify a population
_NAMES: Final = {api: api.value for api in Api}
_JSON: Final = ((b"content-type", b"application/json"),)
_PATHS_MAX: Final = 256  # that are remembered with their API
_NO_MODEL: Final = "-"  # stands for a model that the path names, as in Azure's deployments
_GENERATING: Final = frozenset({Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES})
_LAST: Final = {
    b"completions": Api.COMPLETIONS,
    b"responses": Api.RESPONSES,
    b"messages": Api.MESSAGES,
    b"embeddings": Api.EMBEDDINGS,
}


class Event(enum.Enum):
    """The event that ends the race of a request."""

    CONTENT = "content"
    HEADERS = "headers"


_CONTENT, _HEADERS = Event.CONTENT, Event.HEADERS


class Asked(msgspec.Struct, frozen=True):
    """One request as the policy sees it.

    Attributes:
        population: the population of its times.
        parent: population that it belongs to until its own times are known; None if it is its own.
        facts: facts for the policy; `hedge_off` is set if it gets no backup.
        event: event that ends its race, unless the transport has another one.
        first: event that ends its race by a rule; None without a rule.
        api: LLM API that it calls; None for any other request.
        body: its body, of such a call.
        choices: number of choices in the answer.
        key: idempotency key, None if it has none.
        has_switch: True if it has the header `x-ttft-hedge`, which is not sent on.
        stored: True if a server that stores answers would store this one.
    """

    population: PopulationName
    facts: RequestFacts
    event: Event
    parent: PopulationName | None = None
    first: First | None = None
    api: Api | None = None
    body: bytes = b""
    choices: int = 1
    key: bytes | None = None
    has_switch: bool = False
    stored: bool = False


def ask(
    method: str,
    origin: str,
    path: bytes,
    headers: Sequence[tuple[bytes, bytes]],
    body: bytes | None,
    coin: float,
    rules: Rules,
) -> Asked:
    """Read one request.

    Args:
        method: in upper case.
        origin: scheme, host and port.
        path: path with query.
        headers: names in any case.
        body: the whole body; None if it can be sent only once.
        coin: random number in [0, 1).
        rules: rules of the transport.
    """
    found = places(tuple(map(name_of, headers)), _HEADERS_READ)
    switch_at, retry_at, key_at, upgrade_at, accept_at, auth_at, proof_at = found
    has_switch, key = switch_at is not None, None if key_at is None else headers[key_at][1]
    switch = b"" if switch_at is None else headers[switch_at][1].strip().lower()
    is_retry = retry_at is not None and headers[retry_at][1].strip() != b"0"
    is_once = body is None or is_retry or upgrade_at is not None or proof_at is not None
    is_once = is_once or (auth_at is not None and headers[auth_at][1][:6].lower() in _ONCE)
    off = Denial.OFF if is_once or switch == b"off" else None
    ruled = rules.of(method, origin, path) if method != "POST" or rules.has_safe else None
    if method == "POST" and body:
        api = _api(path)
        if api is not None:
            asked = _llm(api, (origin, path), body, off, coin, key, ruled, has_switch=has_switch)
            if asked is not None:
                return asked
    ruled = ruled or rules.of(method, origin, path)
    is_safe = ruled.is_safe
    if method == "GET" and accept_at is not None and _EVENTS in headers[accept_at][1].lower():
        is_safe = ruled.first is not None  # only a rule has an event
    if not (is_safe or (switch == b"on" and key is not None)):
        off = Denial.OFF
    facts = RequestFacts(hedge_off=off, coin=coin)
    return Asked(ruled.population, facts, _HEADERS, ruled.parent, ruled.first, key=key, has_switch=has_switch)


def _llm(
    api: Api,
    address: tuple[str, bytes],
    body: bytes,
    off: Denial | None,
    coin: float,
    key: bytes | None,
    ruled: Addressed | None,
    *,
    has_switch: bool,
) -> Asked | None:
    """Read a call of an LLM API; None if its body is not one: the server rejects it, or it is another API."""
    try:
        fields, prompt_bytes = _reader()(api, body)
    except InvalidRequest:
        return None
    is_stream = fields.streaming and api in _GENERATING
    is_raced = is_stream or api is Api.EMBEDDINGS or (ruled is not None and ruled.is_safe)
    if not (is_raced and fields.hedgeable and fields.choices == 1):
        off = Denial.OFF
    facts = RequestFacts(
        prompt_tokens=prompt_bytes / _BYTES_A_TOKEN,
        prompt_bytes=prompt_bytes,
        answer_tokens=fields.max_tokens,
        hedge_off=off,
        timed=is_raced,
        coin=coin,
    )
    origin, path = address
    name = path.decode("latin-1") if fields.model == _NO_MODEL else fields.model
    apart = "" if is_stream or api is Api.EMBEDDINGS else " whole"  # these answers take longer
    return Asked(
        (origin, f"{_NAMES[api]} {name[:_NAME_MAX]}{apart}"),
        facts,
        _CONTENT if is_stream else _HEADERS,
        None,
        None if ruled is None else ruled.first,
        api,
        body,
        fields.choices,
        key,
        has_switch,
        fields.stored,
    )


def parsed(asked: Asked) -> Call:
    """Return the call of an LLM API, with the positions of the values in its body."""
    from ttft_gateway.requests.request import parse

    assert asked.api is not None
    return parse(asked.api, asked.body, _JSON, _bounds(), frozenset(), default_model=_NO_MODEL).call


@cache
def _reader() -> "Callable[[Api, bytes], tuple[ParsedFields, int]]":
    """Import and return the reader of bodies, which a program without LLM APIs does not need."""
    from ttft_gateway.requests.request import skim

    return partial(skim, bounds=_bounds(), default_model=_NO_MODEL)


@cache
def _bounds() -> "NumberLimits":
    from ttft_gateway.requests.parsed import NumberLimits

    return NumberLimits(n_max=1_000_000, max_tokens_max=1_000_000_000)  # the server checks them


@lru_cache(NAMES_MAX)
def places(names: tuple[bytes, ...], read: tuple[bytes, ...]) -> tuple[int | None, ...]:
    """Return the places of the headers that are read among the names; of several with one name, the last one."""
    at = {name.lower(): place for place, name in enumerate(names)}
    return tuple(map(at.get, read))


@lru_cache(_PATHS_MAX)
def _api(path: bytes) -> Api | None:
    """Return the LLM API that a path belongs to, below any base URL."""
    parts = path.partition(b"?")[0].rsplit(b"/", 2)
    if parts[-2:] == [b"chat", b"completions"]:
        return Api.CHAT
    return _LAST.get(parts[-1])
