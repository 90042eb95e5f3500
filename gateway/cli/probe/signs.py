"""Measures the sign of work in a replica's streams: its time after the response headers, one request for each API.

Chat completions have no signs of work. Units: seconds; milliseconds in output.
"""

import json
from collections.abc import Callable, Mapping

import msgspec

from gateway.cli.probe.plan import PROMPT, sign_tokens
from gateway.cli.probe.stream import Recording
from ttft_gateway.apis.base import Api, Call
from ttft_gateway.estimation.first_token import TOGETHER_S
from ttft_gateway.requests.parsed import NumberLimits as RequestBounds
from ttft_gateway.requests.request import parse

_BODIES: Mapping[Api, Callable[[int], dict[str, object]]] = {
    Api.RESPONSES: lambda tokens: {"input": PROMPT, "max_output_tokens": tokens, "store": False},
    Api.MESSAGES: lambda tokens: {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": tokens},
}


class SignTest(msgspec.Struct, frozen=True):
    """Result for one API of a replica.

    Attributes:
        api: the API.
        after_headers_s: time from the headers to the sign; None without a sign.
        error: failure of the request, which is no failure of the probe; None without failure.
    """

    api: Api
    after_headers_s: float | None
    error: str | None = None

    @property
    def informative(self) -> bool | None:
        """True if the sign comes later than the headers; None if it was not measured."""
        return None if self.after_headers_s is None else self.after_headers_s > TOGETHER_S

    def __str__(self) -> str:
        if self.after_headers_s is None:
            return f"not measured: {self.error}" if self.error is not None else "none"
        if self.informative:
            return f"{1000 * self.after_headers_s:.0f} ms after the headers; it can be timed as the first token"
        return "together with the headers, so it does not show when work begins; it is not timed"


def sign_call(api: Api, max_tokens: int) -> Call:
    """Return a request that gets a sign of work if the replica sends any."""
    tokens = sign_tokens(max_tokens)
    body = {"model": "any", "stream": True, **_BODIES[api](tokens)}
    bounds = RequestBounds(n_max=1, max_tokens_max=tokens)
    return parse(api, json.dumps(body).encode(), (), bounds, frozenset()).call


def sign_test(api: Api, recording: Recording) -> SignTest:
    """Return the result of a recorded answer."""
    if recording.work_s is not None and recording.headers_s is not None:
        return SignTest(api, recording.work_s - recording.headers_s)
    return SignTest(api, None, None if recording.error is None else recording.error.message)
