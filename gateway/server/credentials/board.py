"""The tokens in use in this process: every change reaches the replicas with the token at once.

The tokens come from `TokenKeepers` of this process, or of the supervisor. Part of the composition root. Units: seconds
of the loop's clock.
"""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from gateway.config.discovered import pools
from gateway.config.settings import Settings
from gateway.server.credentials.keepers import TokenState
from gateway.server.upstreams import source_of
from providers.upstream import HttpEndpoint
from ttft_gateway.apis.catalog import Auth
from ttft_gateway.credentials.sources import Source
from ttft_gateway.routing.replicas import Replica

_NO_TOKEN = TokenState(None, "its token has not arrived yet")


class TokenUser(NamedTuple):
    """A replica that sends a token.

    Attributes:
        endpoint: endpoint of the replica.
        auth: header that carries the token.
    """

    source: Source
    replica: Replica
    endpoint: HttpEndpoint
    auth: Auth


class TokenBoard:
    """The tokens in use.

    Args:
        time: returns the time of the loop.

    Attributes:
        users: returns the replicas in force that send a token.
        reject: receives the source of a rejected token, and the time at which the request was sent.
    """

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._states: dict[Source, TokenState] = {}
        self.users: Callable[[], Iterable[TokenUser]] = tuple
        self.reject: Callable[[Source, float], None] = lambda _source, _sent_s: None

    def put(self, source: Source, state: TokenState) -> None:
        """Use another token, or none."""
        self._states[source] = state
        for user in self.users():
            if user.source == source:
                self._apply(user, state)

    def use_new(self) -> None:
        """Give the replicas of new settings their tokens; forget tokens that no replica sends."""
        users = list(self.users())
        used = {user.source for user in users}
        self._states = {source: state for source, state in self._states.items() if source in used}
        for user in users:
            self._apply(user, self._states.get(user.source, _NO_TOKEN))

    def renewer(self, source: Source) -> Callable[[float], None]:
        """Return the function that reports a rejected token of a source."""
        return lambda sent_s: self.reject(source, sent_s)

    def _apply(self, user: TokenUser, state: TokenState) -> None:
        if state.value is None:
            user.replica.lock(state.fault or "it has no token")
        else:
            user.endpoint.use_token(*user.auth.header(state.value))
            user.replica.use_token(state.value, self._time(), is_cure=state.is_cure)


def token_sources(settings: Settings) -> Collection[Source]:
    """Return the sources of the tokens in settings."""
    rows = (row for model in settings.models for pool in pools(model) for row in pool.replicas)
    return dict.fromkeys(source for row in rows if (source := source_of(row)) is not None)
