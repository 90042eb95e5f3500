"""POST /v1/messages/count_tokens: returns the gateway's own estimate of a prompt's tokens.

Agents call it before they send a prompt, to see how full the context is. No replica is involved: quotas and predictions
use the same estimate, scaled by the usage that the model's replicas have reported. It therefore works for every kind of
replica, immediately and free of charge. Units: tokens.
"""

from collections.abc import Iterator

import msgspec

from gateway.api.dialects.base import ClientApi
from gateway.api.exchange import ClientExchange, Connection
from gateway.api.request_head import RequestHead
from gateway.api.response import respond
from gateway.api.serving import Serving
from gateway.errors import MethodNotAllowed
from gateway.race.context import Runtime
from ttft_gateway.estimation.tokens import text_tokens
from ttft_gateway.requests.request import parse_count

PATH = "/v1/messages/count_tokens"

_encode = msgspec.json.Encoder().encode


class CountExchange(ClientExchange):
    """A request for the number of tokens of a prompt."""

    __slots__ = ("_serving",)

    def __init__(
        self,
        connection: Connection,
        head: RequestHead,
        runtime: Runtime,
        api: ClientApi,
        own_id: str,
        serving: Serving,
    ) -> None:
        super().__init__(connection, head, runtime, api, serving.bodies, own_id)
        self._serving = serving

    def _open(self) -> None:
        head, serving = self.head, self._serving
        if head.method != "POST":
            raise MethodNotAllowed(f"method {head.method} is not supported at {PATH}; use POST", allow="POST")
        self._key_name = serving.keyring.name_of(head)
        self._connection.admit(known=serving.keyring.has_keys)
        self._entry = serving.counts.enter(self._key_name)

    def _answer(self, body: bytes) -> None:
        self._when_admitted(lambda: self._count(body))

    def _count(self, body: bytes) -> None:
        serving, headers = self._serving, self.head.headers
        assert self._key_name is not None
        name, prompt = parse_count(body, headers, serving.limits.default_model)
        model = serving.model(self._key_name, name)
        answer = _encode({"input_tokens": max(1, round(model.scale.tokens(text_tokens(prompt))))})
        own = [(b"content-type", b"application/json"), (b"x-request-id", self.request_id.encode())]
        respond(self, 200, own, answer)

    def _abandon(self) -> None:
        """Do nothing: the answer is already made."""

    def _release(self) -> None:
        if self._entry is not None:
            self._entry.close(0.0)


class TokenCounts:
    """The requests for `PATH`.

    Args:
        serving: models, keys and limits from the settings.
        api: the form of errors.
        runtime: clock and receiver of events.
        ids: source of request ids.

    Attributes:
        serving: the settings in force; a request uses the settings with which it started.
    """

    def __init__(self, serving: Serving, api: ClientApi, runtime: Runtime, ids: Iterator[str]) -> None:
        self.serving = serving
        self._api = api
        self._runtime = runtime
        self._ids = ids

    def open(self, connection: Connection, head: RequestHead) -> CountExchange | None:
        """Return the exchange for a request, None if it has another path."""
        if head.path != PATH:
            return None
        return CountExchange(connection, head, self._runtime, self._api, next(self._ids), self.serving)
