"""The attempts of one request, which a race sends: in tasks of asyncio (`async_race.py`) or threads (`sync_race.py`).

A new client library needs an adapter of less than 100 lines: `RacedAttempts`, or, over HTTP, only the two coroutines of
`racing.HttpAdapter`, which send a request and close a response. The adapters have between 10 and 80 lines:

    httpx, httpx2   httpx_async.py, httpx_sync.py   `AsyncHttpxSender`; `HttpxSender`, which blocks and never waits
    aiohttp         aiohttp_session.py              `SessionSender`
    grpc.aio        grpc_async.py                   `RpcAttempts`

A class with the library's own interface (a transport, a session, an interceptor) asks the policy for the race of a
request, runs it, and returns the response, to which it adds the pieces that the race has read. Synchronous gRPC has a
race of its own (`grpc_sync_race.py`): grpc reports a response to a function, so no thread waits for it.
"""

from typing import Final, Protocol, TypeVar

from ttft_gateway.client.hedger import ClientAttempt, ClientRace, Failure
from ttft_gateway.hedging.outcomes import Outcome

_T = TypeVar("_T")

UNSENT: Final = Failure(Outcome.CLIENT_GONE, error="connect")
"""The failure of an attempt that was given up or could not start: none of its server."""


class Overtaken(BaseException):
    """Another attempt has won: the connection is to be closed.

    No `Exception`, so that no client library takes it for an error of the network.
    """


class RacedAttempts(Protocol[_T]):
    """The attempts of one request, as a client library sends them.

    Attributes:
        race: the race of the request.
        primary: its first attempt, counted as sent.
    """

    race: ClientRace
    primary: ClientAttempt

    async def open(self, attempt: ClientAttempt) -> _T:
        """Send an attempt and read it up to its first event, and report that, or that there is none.

        Returns:
            The response of an attempt that has won, or that the server has answered without an event.

        Raises:
            Overtaken: another attempt has won; the connection is closed.
            Exception: there is no response; the connection is closed, and the race reports the failure.
        """

    def failure(self, error: Exception) -> Failure:
        """Classify an error of `open`."""

    async def close(self, opened: _T) -> None:
        """Close a response that is not returned."""
