"""Types of names and values of settings that are part of a request: headers, origins, and fields of a body.

Rejects what would forge a request, pass on a credential, or change what the gateway has read in a body. As in
values.py, an invalid value raises a `PydanticCustomError` of type "setting", and no setting is named here.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, JsonValue, SecretStr, WithJsonSchema

from gateway.config.values import MASKED, invalid_value
from ttft_gateway.apis.base import HOPS

_OWN_HEADERS = frozenset(
    [
        "host",
        "connection",
        "content-length",
        "content-type",
        "transfer-encoding",
        "accept",
        "accept-encoding",
        "authorization",
        HOPS.decode(),
    ]
)

_HOP_BY_HOP = frozenset(  # of one connection, or set by the gateway for the body that it sends
    [
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "x-request-id",
        HOPS.decode(),
    ]
)
_READ_FIELDS = frozenset(  # decide the form of the answer, or what a second attempt would repeat
    [
        "audio",
        "background",
        "best_of",
        "container",
        "context_management",
        "conversation",
        "deferred",
        "echo",
        "input",
        "instructions",
        "kv_transfer_params",
        "mcp_servers",
        "messages",
        "modalities",
        "model",
        "n",
        "plugins",
        "previous_response_id",
        "prompt",
        "prompt_logprobs",
        "return_hidden_states",
        "return_token_ids",
        "search_parameters",
        "store",
        "stream",
        "stream_options",
        "system",
        "tools",
        "use_beam_search",
        "web_search_options",
    ]
)
_CREDENTIAL = re.compile(r"(^|[-_])(auth|authorization|cookie2?|key|passw(or)?d|proxy|secret|token)($|[-_])|api-?key")


def header_name(value: str) -> str:
    """Return the name of an HTTP header in lower case."""
    name = value.lower()
    if not re.fullmatch(r"[a-z0-9!#$%&'*+.^_`|~-]+", name):
        raise invalid_value("it is not a valid name of an HTTP header")
    return name


def _own_header(value: str) -> str:
    name = header_name(value)
    if name in _OWN_HEADERS:
        raise invalid_value("the gateway sets this header itself (write a key in api_key)")
    return name


def _passed_header(value: str) -> str:
    name = header_name(value)
    if name in _HOP_BY_HOP:
        raise invalid_value("the gateway sets this header itself, or it belongs to one connection; remove it")
    if _CREDENTIAL.search(name):
        raise invalid_value("this header may carry a caller's credentials, which no replica must receive; remove it")
    return name


def _body_field(value: str) -> str:
    if value in _READ_FIELDS:
        raise invalid_value("the gateway reads this field of the request and must not change it; remove it")
    if not re.fullmatch(r"[!-~]{1,128}", value):
        raise invalid_value("a field must be 1 to 128 visible ASCII characters without spaces")
    return value


def _header_value(value: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]([ -~]*[!-~])?", value.get_secret_value()):
        raise invalid_value("a header value must be visible ASCII on one line")
    return value


def _origin(value: str) -> str:
    origin = value.lower()
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", origin):
        raise invalid_value("it is not the origin of a web page", "scheme, host and port only: https://app.example")
    scheme, port = origin.partition(":")[0], origin.rpartition(":")[2]
    if (scheme, port) in (("http", "80"), ("https", "443")):
        raise invalid_value("browsers leave out this port in an origin; remove it")
    return origin


HeaderName = Annotated[str, AfterValidator(_own_header)]
HeaderValue = Annotated[SecretStr, AfterValidator(_header_value), MASKED]
PassedHeader = Annotated[str, AfterValidator(_passed_header)]
"""Name of a client header that replicas may receive, in lower case."""
Origin = Annotated[str, AfterValidator(_origin)]
"""Origin of web pages as browsers send it, in lower case."""
BodyField = Annotated[str, AfterValidator(_body_field)]
"""Key at the top level of a request body that the configuration may set."""
AnyJson = Annotated[JsonValue, WithJsonSchema({})]
