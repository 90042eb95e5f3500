"""Answers that end badly on real sockets: an error in the form of the client's API, or another replica's answer."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pytest

from gateway.events import RequestEnded
from gateway_fixture import Site, fronting
from race_scenarios import Settings
from raw_http import answer, request_bytes
from running import run_real
from scripted_http import read_request, serving
from ttft_gateway.apis.base import Api
from ttft_gateway.hedging.outcomes import Outcome
from upstream_endings import DONE, END_MARKS, NATIVES, TEXT, Native, broken, text_in, whole

OFF: Settings = {"policy": "off"}
PATHS: Final = {
    Api.CHAT: "/v1/chat/completions",
    Api.COMPLETIONS: "/v1/completions",
    Api.MESSAGES: "/v1/messages",
    Api.RESPONSES: "/v1/responses",
}
ROWS: Final[Mapping[Api, Mapping[str, object]]] = {
    Api.CHAT: {"apis": ["chat/completions"]},
    Api.COMPLETIONS: {"apis": ["completions"]},
    Api.MESSAGES: {"kind": "anthropic"},
    Api.RESPONSES: {"apis": ["responses"]},
}
HELLO: Final = [{"role": "user", "content": "hello"}]
HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


class Got(NamedTuple):
    """A client's answer.

    Attributes:
        text: text of the answer.
        ended: the answer has the mark of a whole answer of its API.
        error: the error of the client's API, None without an error.
    """

    text: str
    ended: bool
    error: Mapping[str, Any] | None


def request(api: Api, *, stream: bool, model: str) -> bytes:
    """A request of a client of this API."""
    body: dict[str, object] = {"model": model, "stream": stream}
    body |= {
        Api.CHAT: {"messages": HELLO, "temperature": 0},
        Api.COMPLETIONS: {"prompt": "hello", "temperature": 0},
        Api.MESSAGES: {"messages": HELLO, "max_tokens": 9},
        Api.RESPONSES: {"input": "hello", "store": False},
    }[api]
    return request_bytes(json.dumps(body).encode(), PATHS[api])


def read_stream(raw: bytes) -> Got:
    """Read a stream of any API."""
    error = None
    for line in raw.splitlines():
        data: dict[str, Any] = json.loads(line.removeprefix(b"data: ")) if line.startswith(b"data: {") else {}
        failed = data.get("type") == "response.failed"
        error = data["response"]["error"] if failed else data.get("error") or error
    return Got(text_in(raw), any(mark in raw.replace(b'": "', b'":"') for mark in END_MARKS), error)


def read_body(api: Api, status: int, raw: bytes) -> Got:
    """Read a JSON body of any API."""
    body = json.loads(raw)
    assert (status == 200) == (not body.get("error"))
    if status != 200:
        assert status in (500, 502, 529)
        assert (api is Api.MESSAGES) == (body.get("type") == "error")
        return Got("", False, body["error"])
    if api is Api.MESSAGES:
        return Got(body["content"][0]["text"], body["stop_reason"] is not None, None)
    if api is Api.RESPONSES:
        return Got(body["output"][0]["content"][0]["text"], body["status"] == "completed", None)
    choice = body["choices"][0]
    return Got(choice.get("text") or choice["message"]["content"], choice["finish_reason"] is not None, None)


async def ask(site: Site, api: Api, *, stream: bool, model: str = "m") -> Got:
    """Return the answer to one request."""
    async with answer(site.port, request(api, stream=stream, model=model)) as got:
        raw = await got.body()
    return read_stream(raw) if stream and got.status == 200 else read_body(api, got.status, raw)


def replica(bodies: list[list[bytes]]) -> Any:
    """A server that answers requests with these bodies in turn, the last one again and again."""
    sent = iter(bodies)
    last = [bodies[-1]]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            await read_request(reader)
            body = b"".join(next(sent, last[0]))
            writer.write(b"%bcontent-length: %d\r\n\r\n%b" % (HEAD, len(body), body))
            await writer.drain()

    return script


CASES: Final = [  # the client's API, and its replica's API
    (Api.CHAT, Api.CHAT),
    (Api.COMPLETIONS, Api.COMPLETIONS),
    (Api.MESSAGES, Api.MESSAGES),
    (Api.RESPONSES, Api.RESPONSES),
    (Api.CHAT, Api.RESPONSES),
    (Api.CHAT, Api.MESSAGES),
    (Api.MESSAGES, Api.CHAT),
    (Api.MESSAGES, Api.RESPONSES),
    (Api.RESPONSES, Api.CHAT),
]
NAMES = [f"{api.name} on {upstream.name}".lower() for api, upstream in CASES]


def shown(native: Native) -> dict[str, list[bytes]]:
    """The endings that looked whole, each after half of the answer."""
    names = ("the closing event", "failed", "cancelled", "half a tool call", "no stop reason", "bad UTF-8", "a NUL")
    return {name: events for name, events in broken(native).items() if name in names}


@pytest.mark.parametrize(("api", "upstream"), CASES, ids=NAMES)
def test_a_broken_answer_of_a_lone_replica_is_an_error(api: Api, upstream: Api, subtests: pytest.Subtests) -> None:
    """The client gets the error in the form of its API and no mark of an end, and the replica has failed."""
    endings = shown(NATIVES[upstream])
    asked = [(name, stream) for name in endings for stream in (True, False)]

    async def main() -> None:
        bodies = [endings[name] for name, stream in asked for _ in range(1 if stream else 2)]  # a body is retried once
        async with (
            serving(replica(bodies)) as server,
            fronting(
                {"a": f"http://127.0.0.1:{server.port}/v1"},
                models=len(asked),
                own={"a": ROWS[upstream]},
                hedge=OFF,
            ) as site,
        ):
            for number, (name, stream) in enumerate(asked):
                with subtests.test(name, stream=stream):
                    got = await ask(site, api, stream=stream, model=f"m{number}")
                    assert got.error is not None
                    assert not got.ended
                    assert got.text == ("Hello" if stream else "")
            ended = [event for event in site.events if isinstance(event, RequestEnded)]
            assert [event.attempts[0].outcome for event in ended] == [Outcome.CUT] * len(asked)
            assert all(event.error and event.status >= 500 and event.winner is None for event in ended)

    run_real(main())


@pytest.mark.parametrize(("api", "upstream"), CASES, ids=NAMES)
def test_a_broken_answer_beside_a_healthy_replica_is_whole_or_an_error(
    api: Api, upstream: Api, subtests: pytest.Subtests
) -> None:
    """A body, and a stream that can be recovered, come from the other replica; no answer is silently shorter."""
    native = NATIVES[upstream]
    endings = {**shown(native), "only a closing event": [native.closing]}
    asked = [(name, stream) for name in endings for stream in (True, False)]

    async def main() -> None:
        good = whole(native)["as usual"]
        async with (
            serving(replica([endings[name] for name, _ in asked])) as bad,
            serving(replica([good])) as healthy,
            fronting(
                {"a": f"http://127.0.0.1:{bad.port}/v1"},
                {"b": f"http://127.0.0.1:{healthy.port}/v1"},
                models=len(asked),
                model={"recovery": "replay"},
                own={"a": ROWS[upstream], "b": ROWS[upstream]},
                hedge=OFF,
            ) as site,
        ):
            for number, (name, stream) in enumerate(asked):
                with subtests.test(name, stream=stream):
                    got = await ask(site, api, stream=stream, model=f"m{number}")
                    recovers = not stream or api in (Api.CHAT, Api.COMPLETIONS) or name == "only a closing event"
                    if recovers and name != "half a tool call":  # a text after a tool call is another answer
                        assert got == Got(TEXT, ended=True, error=None)
                    else:
                        assert (got.error is None) == got.ended == (got.text == TEXT)

    run_real(main())


@pytest.mark.parametrize("at", [1, 3], ids=["first event with text", "later event"])
def test_an_answer_is_not_assembled_without_one_of_its_events(at: int) -> None:
    """An event with invalid bytes in a field that is not read on the way fails a JSON answer, and is not left out."""
    native = NATIVES[Api.CHAT]
    bad = whole(native)["as usual"]
    bad[at] = bad[at].replace(b'"index":0', b'"index":0,"logprobs":{"content":[{"token":"\xe4"}]}')

    async def main() -> None:
        async with (
            serving(replica([bad])) as server,
            serving(replica([whole(native)["as usual"]])) as healthy,
            fronting(
                {"a": f"http://127.0.0.1:{server.port}/v1"},
                {"b": f"http://127.0.0.1:{healthy.port}/v1"},
                own={"a": ROWS[Api.CHAT], "b": ROWS[Api.CHAT]},
                hedge=OFF,
            ) as site,
        ):
            assert await ask(site, Api.CHAT, stream=False) == Got(TEXT, ended=True, error=None)
            (ended,) = [event for event in site.events if isinstance(event, RequestEnded)]
            outcomes = [attempt.outcome for attempt in ended.attempts]
            assert (outcomes[0], outcomes[-1]) == (Outcome.CUT, Outcome.FINISHED)

    run_real(main())


STALL: Settings = {"stall": "300ms"}


@pytest.mark.parametrize(("api", "upstream"), CASES, ids=NAMES)
def test_an_answer_that_is_never_closed_is_whole(api: Api, upstream: Api) -> None:
    """A server that neither closes nor sends its closing event costs the answer nothing, whatever `stall` is."""
    native = NATIVES[upstream]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + b"\r\n" + b"".join([*native.opening, *native.words, *native.finish]))
        await reader.read()

    async def main() -> None:
        async with (
            serving(script) as server,
            fronting(
                {"a": f"http://127.0.0.1:{server.port}/v1"}, own={"a": ROWS[upstream]}, timeouts=STALL, hedge=OFF
            ) as site,
        ):
            for got in await asyncio.gather(ask(site, api, stream=True), ask(site, api, stream=False)):
                assert (got.text, got.error) == (TEXT, None)
                assert got.ended or (api is upstream and api in (Api.CHAT, Api.COMPLETIONS))  # no [DONE] is made up

    run_real(main())


@pytest.mark.parametrize(
    ("framing", "lost"),
    [("length", False), ("length", True), ("chunks", False), ("chunks", True), ("the connection", False)],
)
def test_the_end_of_a_body_completes_its_last_event(framing: str, *, lost: bool) -> None:
    """A finish without its blank line counts at the end of a body, and not where the connection was lost."""
    native = NATIVES[Api.CHAT]
    body = b"".join([*native.opening, *native.words, *native.finish]).rstrip(b"\n")
    raw = {
        "length": HEAD + b"content-length: %d\r\n\r\n%b" % (len(body) + lost, body),
        "chunks": HEAD
        + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n%b" % (len(body), body, b"0\r\n\r\n"[5 * lost :]),
        "the connection": HEAD + b"connection: close\r\n\r\n" + body,
    }[framing]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(raw)
        await writer.drain()

    async def main() -> None:
        async with (
            serving(script) as server,
            fronting({"a": f"http://127.0.0.1:{server.port}/v1"}, own={"a": ROWS[Api.CHAT]}, hedge=OFF) as site,
        ):
            got = await ask(site, Api.CHAT, stream=False)
            assert (got.text, got.error is None) == (("", False) if lost else (TEXT, True))

    run_real(main())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "body"])
def test_a_declared_type_is_not_believed(*, stream: bool) -> None:
    """Events that are declared as JSON, and JSON that is declared as events, are what their first byte shows."""
    native = NATIVES[Api.CHAT]
    events = b"".join([*native.opening, *native.words, *native.finish, DONE])
    bodies = [(b"application/json", events), (b"text/event-stream", json.dumps(native.body).encode())]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for declared, body in bodies:
            await read_request(reader)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (declared, len(body))
            writer.write(head + body)
            await writer.drain()

    async def main() -> None:
        async with (
            serving(script) as server,
            fronting({"a": f"http://127.0.0.1:{server.port}/v1"}, own={"a": ROWS[Api.CHAT]}, hedge=OFF) as site,
        ):
            for _ in bodies:
                assert await ask(site, Api.CHAT, stream=stream) == Got(TEXT, ended=True, error=None)

    run_real(main())
