"""Simulated servers of one Claude at Anthropic, Bedrock, Vertex AI and Foundry, on loopback sockets.

Each server checks the path, the headers, the token and the body of every request as its cloud documents them
(ttft_gateway/apis/clouds.py has the sources), answers with a stream of the Messages API or with a whole message, and
rejects what the cloud would reject, in the cloud's own form. Units: seconds.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from raw_http import answer
from scripted_http import read_request
from scripted_http import serving as listening

REGION: Final = "us-east-1"
PROJECT: Final = "p"
MODELS: Final = {
    "anthropic": "claude-opus-4-8",
    "bedrock": "anthropic.claude-opus-4-8",
    "vertex": "claude-opus-4-8@20260801",
    "foundry": "claude-opus-4-8",
}
PATHS: Final = {
    "anthropic": "/v1/messages",
    "bedrock": "/anthropic/v1/messages",
    "vertex": f"/v1/projects/{PROJECT}/locations/{REGION}/publishers/anthropic/models/{MODELS['vertex']}",
    "foundry": "/anthropic/v1/messages",
}
ROOTS: Final = {
    "anthropic": "/v1",
    "bedrock": "/anthropic/v1",
    "vertex": f"/v1/projects/{PROJECT}/locations/{REGION}/publishers/anthropic",
    "foundry": "/anthropic/v1",
}
WORDS: Final = ("one ", "two ", "three ", "four")


def anthropic_error(status: int, kind: str, message: str) -> tuple[int, dict[str, Any]]:
    """Return an error of Anthropic's form."""
    return status, {"type": "error", "error": {"type": kind, "message": message}}


EXPIRED: Final[Mapping[str, tuple[int, dict[str, Any]]]] = {
    "anthropic": anthropic_error(401, "authentication_error", "invalid x-api-key"),
    "bedrock": (403, {"Message": "Bearer Token has expired"}),
    "vertex": (
        401,
        {
            "error": {
                "code": 401,
                "message": "Request had invalid authentication credentials.",
                "status": "UNAUTHENTICATED",
                "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "ACCESS_TOKEN_EXPIRED"}],
            }
        },
    ),
    "foundry": (
        401,
        {"error": {"code": "401", "message": "Access denied due to invalid subscription key or wrong API"}},
    ),
}
"""Response to a request with an expired or wrong token."""
LIMITED: Final[Mapping[str, tuple[int, dict[str, Any]]]] = {
    "anthropic": anthropic_error(429, "rate_limit_error", "This request would exceed your rate limit."),
    "bedrock": (429, {"message": "Too many requests, please wait before trying again."}),
    "vertex": (
        429,
        {
            "error": {
                "code": 429,
                "message": "Quota exceeded for aiplatform.googleapis.com",
                "status": "RESOURCE_EXHAUSTED",
            }
        },
    ),
    "foundry": (429, {"error": {"code": "RateLimitReached", "message": "Please retry after 1 seconds."}}),
}
"""Response above the limit."""
ELSEWHERE: Final[Mapping[str, tuple[int, dict[str, Any]]]] = {
    "anthropic": anthropic_error(404, "not_found_error", "model: claude-opus-4-8"),
    "bedrock": (
        400,
        {
            "error": {
                "code": "validation_error",
                "message": "model `anthropic.claude-opus-4-8` isn't supported on this route",
                "type": "invalid_request_error",
            }
        },
    ),
    "vertex": (
        404,
        {"error": {"code": 404, "message": "Publisher Model `projects/p/x` was not found", "status": "NOT_FOUND"}},
    ),
    "foundry": (404, {"error": {"code": "DeploymentNotFound", "message": "The API deployment does not exist."}}),
}
"""Response on a wrong route, or in a wrong region."""


@dataclass
class Cloud:
    """One server.

    Attributes:
        name: kind of the cloud.
        token: key or token that it accepts.
        ttft_s: time to the first token.
        gap_s: time between two tokens.
        cuts_after: number of words after which streams are cut; None: never.
        answer: response to every request instead of an answer, None for answers.
        seen: path, headers and body of each request that passed every check.
        faults: what was wrong with each other request.
        rejected: number of requests with a wrong token.
        accepts: returns True for a valid token; None: the one in `token` is valid.
    """

    name: str
    token: str = "sk-of-the-cloud-0123456789"
    ttft_s: float = 0.0
    gap_s: float = 0.0
    cuts_after: int | None = None
    answer: tuple[int, dict[str, Any]] | None = None
    seen: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    rejected: int = 0
    port: int = 0
    accepts: Callable[[str | None], bool] | None = None

    @property
    def root(self) -> str:
        """Base URL, as the configuration of a replica has it."""
        return f"http://127.0.0.1:{self.port}{ROOTS[self.name]}"

    @property
    def host(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        while True:
            try:
                head, content = await read_request(reader)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            lines = head.decode("latin-1").split("\r\n")
            path = lines[0].split(" ")[1]
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])}
            body = json.loads(content)
            given = self._token(headers)
            if not (given == self.token if self.accepts is None else self.accepts(given)):
                self.rejected += 1
                _write(writer, *EXPIRED[self.name])
            elif self.answer is not None:
                _write(writer, *self.answer)
            elif (fault := self._fault(path, headers, body)) is not None:
                self.faults.append(fault)
                _write(writer, *ELSEWHERE[self.name])
            else:
                self.seen.append((path, headers, body))
                if not await self._reply(writer, _words_after(body), stream=body.get("stream") is True):
                    return
            await writer.drain()

    def _token(self, headers: Mapping[str, str]) -> str | None:
        bearer = headers.get("authorization", "").removeprefix("Bearer ") or None
        if self.name == "vertex":
            return bearer
        return headers.get("x-api-key", bearer)

    def _fault(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
        """Return what the cloud's documentation does not allow; None if all is right."""
        expected = PATHS[self.name]
        if self.name == "vertex":
            expected += ":streamRawPredict" if body.get("stream") else ":rawPredict"
        if path != expected:
            return f"path {path}"
        if self.name == "vertex":
            if "model" in body or body.get("anthropic_version") != "vertex-2023-10-16":
                return f"body {sorted(body)}"
        elif body.get("model") != MODELS[self.name] or "anthropic_version" in body:
            return f"body {sorted(body)}"
        elif headers.get("anthropic-version") != "2023-06-01":
            return "no version"
        if self.name == "vertex" and ("x-api-key" in headers or "anthropic-version" in headers):
            return "headers of another cloud"
        if not isinstance(body.get("max_tokens"), int) or not body.get("messages"):
            return "no messages or no max_tokens"
        return None if headers.get("content-type") == "application/json" else "content type"

    async def _reply(self, writer: asyncio.StreamWriter, words: Sequence[str], *, stream: bool) -> bool:
        """Write an answer; return False if the connection was cut."""
        await asyncio.sleep(self.ttft_s)
        usage = {"input_tokens": 5, "cache_read_input_tokens": 3, "output_tokens": len(words)}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODELS[self.name]}
        if not stream:
            content = [{"type": "text", "text": "".join(words)}]
            _write(
                writer,
                200,
                {**message, "content": content, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage},
            )
            return True
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        start: dict[str, Any] = {
            **message,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**usage, "output_tokens": 1},
        }
        self._send(writer, "message_start", message=start)
        self._send(writer, "content_block_start", index=0, content_block={"type": "text", "text": ""})
        for number, word in enumerate(words):
            if self.cuts_after == number:
                writer.transport.abort()
                return False
            self._send(writer, "content_block_delta", index=0, delta={"type": "text_delta", "text": word})
            await writer.drain()
            await asyncio.sleep(self.gap_s)
        self._send(writer, "content_block_stop", index=0)
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        self._send(writer, "message_delta", delta=delta, usage={"output_tokens": len(words)})
        self._send(writer, "message_stop")
        writer.write(b"0\r\n\r\n")
        return True

    def _send(self, writer: asyncio.StreamWriter, kind: str, **fields: Any) -> None:
        event = f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))


def _words_after(body: Mapping[str, Any]) -> Sequence[str]:
    """Return the words that follow the beginning of the answer in the last turn, as Anthropic continues it."""
    last = body["messages"][-1]
    if last["role"] != "assistant":
        return WORDS
    begun = last["content"] if isinstance(last["content"], str) else "".join(each["text"] for each in last["content"])
    rest = "".join(WORDS).removeprefix(begun)
    return [word for number, word in enumerate(WORDS) if len("".join(WORDS[number:])) <= len(rest)]


def _write(writer: asyncio.StreamWriter, status: int, body: Mapping[str, Any]) -> None:
    content = json.dumps(body).encode()
    kind = b"x-amzn-errortype: AccessDeniedException\r\n" if "Message" in body else b""
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
    writer.write(head % (status, kind, len(content)) + content)


@contextlib.asynccontextmanager
async def clouds(**options: Any) -> AsyncIterator[dict[str, Cloud]]:
    """Run a server of each cloud.

    Args:
        options: attributes of every server.
    """
    async with contextlib.AsyncExitStack() as stack:
        found = {}
        for name in MODELS:
            cloud = Cloud(name, **options)
            server = await stack.enter_async_context(listening(cloud.serve))
            cloud.port = server.port
            found[name] = cloud
        yield found


def row(cloud: Cloud, **settings: Any) -> dict[str, Any]:
    """Return the settings of a replica at a simulated cloud; without a credential it sends a key."""
    key = {} if "credential" in settings else {"api_key": cloud.token}
    return {"kind": cloud.name, "model": MODELS[cloud.name], "base_url": cloud.root, **key, **settings}


async def sent(port: int, payload: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send a request to a gateway; return status, headers and body of the response."""
    async with answer(port, payload) as got:
        return got.status, dict(got.headers), await got.body()
