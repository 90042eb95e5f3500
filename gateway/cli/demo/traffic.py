"""The demo's traffic: a small streaming client of its own, and a steady, seeded flow of requests through it.

Requests go in turn to the model that is not hedged and to the one that is, so that both see the same replicas at the
same time. Open loop: a request is due when it is due, and its time counts from then. Knows the gateway only by HTTP.
Units: seconds.
"""

import asyncio
import json
import random
from collections.abc import Callable

from httptools import HttpParserError, HttpResponseParser

from gateway.cli.demo.table import HedgeCount, ModeTally, TtftSample
from gateway.config.values import Address

REQUESTS_PER_S = 20.0
MODEL_ON, MODEL_OFF = "demo", "demo-off"

_TOKENS = 16
_REQUEST_S_MAX = 30.0
_ADMIN_S_MAX = 1.0
_IN_FLIGHT_MAX = 200  # ten seconds of traffic; more are counted as failed
_BODY_BYTES_MAX = 1_000_000
_READ_BYTES = 65536
_END_OF_STREAM = b"data: [DONE]\n\n"


async def send(public: Address, key: str | None, off: ModeTally, on: ModeTally, *, seed: int, length_s: float) -> None:
    """Send requests for a while, and wait for all of them.

    Args:
        public: the gateway's address.
        key: what it asks of callers, None: nothing.
        off, on: count what comes back.
        seed: of the times between requests.
        length_s: how long requests are sent; infinite: until cancelled.
    """
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    in_flight: set[asyncio.Task[None]] = set()
    due_s = loop.time()
    end_s = due_s + length_s
    number = 0
    async with asyncio.TaskGroup() as tasks:
        while due_s < end_s:
            await asyncio.sleep(due_s - loop.time())
            model, tally = ((MODEL_OFF, off), (MODEL_ON, on))[number % 2]
            if len(in_flight) < _IN_FLIGHT_MAX:
                task = tasks.create_task(_count(public, key, model, due_s, tally))
                in_flight.add(task)
                task.add_done_callback(in_flight.discard)
            else:
                tally.add(None)
            number += 1
            due_s += rng.expovariate(REQUESTS_PER_S)


async def read_budget(admin: Address) -> HedgeCount | None:
    """The budget of the hedged model as the admin address tells it, None if it does not."""
    try:
        answer = await _exchange(admin, _request("GET", "/admin/models", admin), _ADMIN_S_MAX)
        [pool] = next(row["pools"] for row in json.loads(answer.body)["models"] if row["model"] == MODEL_ON)
        return HedgeCount(float(pool["budget_level"]), float(pool["budget_cap"]))
    except (OSError, HttpParserError, ValueError, LookupError, TypeError, StopIteration):
        return None


async def ask(public: Address, key: str | None, model: str, due_s: float) -> TtftSample | None:
    """Stream one answer; None if it is not a whole one."""
    message = {"role": "user", "content": "Tell me something."}
    body = json.dumps({"model": model, "stream": True, "max_tokens": _TOKENS, "messages": [message]}).encode()
    try:
        answer = await _exchange(public, _request("POST", "/v1/chat/completions", public, body, key), _REQUEST_S_MAX)
    except (OSError, HttpParserError):
        return None
    if answer.content_s is None or not answer.body.endswith(_END_OF_STREAM):
        return None
    result = answer.headers.get("x-ttft-result", "")
    return TtftSample(
        ttft_s=answer.content_s - due_s,
        attempts=int(answer.headers.get("x-ttft-attempts", "1")),
        hedged=result.startswith("backup_"),
        won=result == "backup_won",
        denied="x-ttft-denied" in answer.headers,
    )


class _Answer:
    """What has come of an answer; httptools calls the methods that begin with on_.

    Attributes:
        headers: names in lower case.
        body: without its framing.
        content_s: when the first event with generated text had come.
        complete: all of it has come.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.headers: dict[str, str] = {}
        self.body = b""
        self.content_s: float | None = None
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > _BODY_BYTES_MAX:
            raise ValueError("the answer is longer than any of the demo's")  # httptools makes its own error of it
        if self.content_s is None and any(_is_content(event) for event in self.body.split(b"\n\n")[:-1]):
            self.content_s = self._now()

    def on_message_complete(self) -> None:
        self.complete = True


def _is_content(event: bytes) -> bool:
    if not event.startswith(b"data: {"):
        return False
    choices = json.loads(event[6:]).get("choices") or [{}]
    return bool(choices[0].get("delta", {}).get("content"))


async def _count(public: Address, key: str | None, model: str, due_s: float, tally: ModeTally) -> None:
    tally.add(await ask(public, key, model, due_s))


async def _exchange(address: Address, request: bytes, wait_s_max: float) -> _Answer:
    """Send a request on a connection of its own and take the answer, as far as it comes.

    Raises:
        OSError: no connection, a lost one, or the wait was over.
        HttpParserError: this is not an answer.
    """
    answer = _Answer(asyncio.get_running_loop().time)
    async with asyncio.timeout(wait_s_max):
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(request)
            parser = HttpResponseParser(answer)
            while not answer.complete and (data := await reader.read(_READ_BYTES)):
                parser.feed_data(data)
        finally:
            writer.close()
    return answer


def _request(method: str, path: str, address: Address, body: bytes = b"", key: str | None = None) -> bytes:
    authorization = f"authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{authorization}"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
