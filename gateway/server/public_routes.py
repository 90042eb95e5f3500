"""All routes of the public address: chooses the exchange for the request of a client, by the settings in force.

Part of the composition root: names the protocol of each API. Units: Unix seconds for the start of the gateway.
"""

from datetime import UTC, datetime

from gateway.api.auth import CrossOrigin
from gateway.api.count_tokens import TokenCounts
from gateway.api.dialects.base import ClientApi
from gateway.api.dialects.endings import PING, MessagesTerminator, ResponsesTerminator, messages_error_body
from gateway.api.exchange import ClientExchange, Connection, request_ids
from gateway.api.passed_routes import PassedRoutes
from gateway.api.plain_routes import PlainRoutes
from gateway.api.request_head import RequestHead
from gateway.api.routes import RacedRoutes
from gateway.race.context import Runtime
from gateway.server.topology import InForce
from providers.anthropic.protocol import MessageAssembler
from providers.openai.chat import OpenAIChat, OpenAICompletions
from providers.responses.protocol import OpenAIResponses
from ttft_gateway.apis.base import Api, Headers


def client_apis() -> dict[Api, ClientApi]:
    """Return the APIs for clients."""
    return {
        Api.CHAT: ClientApi(OpenAIChat().assembler),
        Api.COMPLETIONS: ClientApi(OpenAICompletions().assembler),
        Api.RESPONSES: ClientApi(OpenAIResponses().assembler, ResponsesTerminator),
        Api.EMBEDDINGS: ClientApi(None),
        Api.RERANK: ClientApi(None),
        Api.MODERATIONS: ClientApi(None),
        Api.TOKENIZE: ClientApi(None),
        Api.MESSAGES: ClientApi(lambda _: MessageAssembler(), MessagesTerminator, messages_error_body, PING),
    }


class PublicRoutes:
    """The routes of the public address.

    Args:
        in_force: the topology in force.
        runtime: clock and receiver of events.

    Attributes:
        raced: routes for which replicas race.
        passed: routes that are passed on to one replica.
        plain: routes that need no replica.
        draining: True while the gateway stops; /readyz then returns 503.
    """

    def __init__(self, in_force: InForce, runtime: Runtime) -> None:
        self._in_force = in_force
        self.draining = False
        self._runtime = runtime
        apis, serving, ids = client_apis(), in_force.topology.serving, request_ids()
        self.raced = RacedRoutes(serving, apis, runtime, ids)
        self.passed = PassedRoutes(serving, runtime, ids)
        self._counts = TokenCounts(serving, apis[Api.MESSAGES], runtime, ids)
        started = int(datetime.now(UTC).timestamp())
        self.plain = PlainRoutes(serving, self._models_of, started, lambda: not self.draining, runtime, ids)
        self.use_new()

    def use_new(self) -> None:
        """Open the requests that arrive from now on with the settings in force."""
        topology = self._in_force.topology
        self.raced.serving = self.passed.serving = self._counts.serving = self.plain.serving = topology.serving
        origins = topology.settings.cors_origins
        self._cors = CrossOrigin(origins) if origins else None

    def open(self, connection: Connection, head: RequestHead) -> ClientExchange:
        """Return the exchange for a request."""
        cors = self._cors
        preflight = None if cors is None else cors.preflight(head.method, head.by_name)
        if preflight is not None:
            return self.plain.open_preflight(connection, head, preflight)
        exchange: ClientExchange | None = self.raced.open(connection, head)
        if exchange is None:
            exchange = (
                self._counts.open(connection, head)
                or self.passed.open(connection, head)
                or self.plain.open(connection, head)
            )
        if cors is not None:
            exchange.own_headers = (*connection.own_headers, *cors.added(head.by_name))
        return exchange

    @property
    def active(self) -> int:
        """Number of running requests."""
        return len(self.raced.active) + len(self.passed.active)

    def end_streams(self) -> None:
        """End every running request with an error, and reject new requests."""
        self.raced.refusing = self.passed.refusing = True
        for race in tuple(self.raced.active):
            race.shut_down()
        for exchange in tuple(self.passed.active):
            exchange.shut_down()
        for loser in tuple(self._runtime.losers):
            loser.stop()

    def _models_of(self, headers: Headers) -> list[str]:
        topology = self._in_force.topology
        keyring = topology.serving.keyring
        key_name = keyring.name(headers)
        models = [model for model in topology.settings.models if keyring.may_use(key_name, model.name)]
        return [name for model in models for name in (model.name, *model.aliases)]
