"""Threads of the Messages API: Anthropic stores the conversation, and an answer may be continued once."""

import json
from typing import Any

import pytest

from gateway_fixture import Site, serving
from raw_http import answer, request_bytes
from running import run_real

RACED = {"policy": "static", "delay": "1ms", "hedge_delay_min": "1ms", "budget": "100%"}
REPLICA = {"ttft": "8ms", "tokens": 4}
HELLO = [{"role": "user", "content": "hello"}]
CREATE = {"type": "create"}


async def ask(site: Site, thread: dict[str, str], key: str = "", **more: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """The headers and the body of the answer to one turn."""
    body = {"model": "m", "max_tokens": 8, "messages": HELLO, "thread": thread, **more}
    request = request_bytes(json.dumps(body).encode(), "/v1/messages", headers={"x-api-key": key} if key else {})
    async with answer(site.port, request) as got:
        return {":status": str(got.status), **dict(got.headers)}, json.loads(await got.body())


def continued(message_id: str) -> dict[str, str]:
    """The thread of a later turn."""
    return {"type": "continue", "previous_message_id": message_id}


def test_a_thread_stays_at_its_replica() -> None:
    """A turn is sent once, to the replica that gave the answer before."""

    async def main() -> None:
        async with serving({"a": REPLICA, "b": REPLICA, "c": REPLICA}, hedge=RACED, kind="anthropic") as site:
            headers, message = await ask(site, CREATE)
            first = headers["x-ttft-replica"]
            for _ in range(4):
                headers, message = await ask(site, continued(message["id"]), messages=[])
                assert (headers["x-ttft-replica"], headers["x-ttft-attempts"]) == (first, "1")

    run_real(main())


def test_a_thread_belongs_to_its_key() -> None:
    """Another key gets Anthropic's error for an unknown thread, and no replica gets the request."""

    async def main() -> None:
        keys = [{"name": name, "key": f"sk-{name}"} for name in "ab"]
        async with serving({"a": REPLICA}, keys=keys, kind="anthropic") as site:
            _, message = await ask(site, CREATE, "sk-a")
            reached = site.reached
            headers, body = await ask(site, continued(message["id"]), "sk-b")
            assert headers[":status"] == "404"
            assert (body["error"]["type"], body["error"]["details"]) == (
                "not_found_error",
                {"error_code": "thread_not_found"},
            )
            assert site.reached == reached

    run_real(main())


@pytest.mark.parametrize(
    ("kind", "own"),
    [("vllm", {}), ("vllm", {"apis": ["messages"]}), ("bedrock", {"model": "anthropic.claude-opus-4-8"})],
)
def test_other_upstreams_have_no_threads(kind: str, own: dict[str, Any]) -> None:
    """The error is Anthropic's own for what cannot be threaded, after which its SDKs send the whole conversation."""

    async def main() -> None:
        model = {"drop_params": True}
        async with serving({"a": REPLICA}, kind=kind, own={"a": own}, model=model) as site:
            for thread in (CREATE, continued("msg_1")):
                headers, body = await ask(site, thread)
                error = body["error"]
                assert (headers[":status"], error["type"]) == ("400", "invalid_request_error")
                assert (error["param"], error["details"]) == ("thread", {"error_code": "thread_unsupported_request"})
            assert site.reached == 0

    run_real(main())
