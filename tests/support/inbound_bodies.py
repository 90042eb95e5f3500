"""Request bodies for tests of their parser, and what it makes of them."""

import pytest

from ttft_gateway.apis.base import Api, Headers
from ttft_gateway.requests.errors import InvalidRequest
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.requests.request import Inbound, parse

BOUNDS = NumberLimits(n_max=16, max_tokens_max=1000)
MESSAGES = '"messages":[{"role":"user","content":"hi"}]'


def read(body: bytes | str, api: Api = Api.CHAT, headers: Headers = ()) -> Inbound:
    """Parse as the routes do."""
    raw = body.encode() if isinstance(body, str) else body
    return parse(api, raw, list(headers), BOUNDS, frozenset({b"traceparent"}))


def chat(*members: str) -> str:
    """A chat body that is good but for these members."""
    return "{" + ",".join(('"model":"m"', MESSAGES, *members)) + "}"


def completions(*members: str) -> str:
    """A completions body with these members behind its model."""
    return "{" + ",".join(('"model":"m"', *members)) + "}"


def told(body: bytes | str, api: Api = Api.CHAT, headers: Headers = ()) -> InvalidRequest:
    """The error that a body gets."""
    with pytest.raises(InvalidRequest) as caught:
        read(body, api, headers)
    return caught.value


def refused(body: bytes | str, api: Api = Api.CHAT) -> InvalidRequest | None:
    """The error that a body gets, if any."""
    try:
        read(body, api)
    except InvalidRequest as error:
        return error
    return None
