"""Calls of web UIs, replayed: model lists, chats, titles, and users who stop an answer.

Open WebUI 0.12.4: the calls come from its source files, named in each test. LibreChat: its package makes them
(`scripts/sdk-matrix --clis --record`), and tests/wire/recorded/librechat.jsonl has them.
"""

import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

import pytest

from checkout import ROOT
from gateway_fixture import Site, fronting, serving, until
from model_server import model_replicas
from raw_http import CHAT, answer, connect, request_bytes
from recorded_calls import load_calls
from running import run_real

KEY = "sk-of-the-ui"
KEYS = [{"name": "ui", "key": KEY}]
AIOHTTP = {  # headers of aiohttp, Open WebUI's HTTP client
    "accept": "*/*",
    "accept-encoding": "gzip, deflate, br, zstd",
    "authorization": f"Bearer {KEY}",
    "user-agent": "Python/3.11 aiohttp/3.13.2",
}
USER = {  # ENABLE_FORWARD_USER_INFO_HEADERS
    "x-openwebui-user-name": "Ada%20L",
    "x-openwebui-user-id": "u-1",
    "x-openwebui-user-email": "ada@example.org",
    "x-openwebui-user-role": "user",
    "x-openwebui-chat-id": "chat-1",
}
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which word is it?"}]
STREAM = {"stream": True, "model": "m", "messages": MESSAGES, "stream_options": {"include_usage": True}}
LIBRECHAT = load_calls(ROOT / "tests/wire/recorded/librechat.jsonl")
HEDGE = {"policy": "static", "delay": "1ms", "hedge_delay_min": "1ms", "budget": "100%", "routing": "round_robin"}


def site(**profiles: Mapping[str, object]) -> AbstractAsyncContextManager[Site]:
    """A gateway with a key, over simulated replicas that are used in turn."""
    return serving(profiles, keys=KEYS, hedge=HEDGE, model={"aliases": ["scripted"], "recovery": "off"})


def asking(body: Mapping[str, object], headers: Mapping[str, str] = AIOHTTP) -> bytes:
    """Return a chat request."""
    return request_bytes(json.dumps(body).encode(), CHAT, headers={**headers, "authorization": f"Bearer {KEY}"})


@pytest.mark.parametrize(("key", "status"), [(KEY, 200), ("sk-wrong", 401)])
@pytest.mark.parametrize("content_type", [False, True])
def test_the_model_list_of_open_webui(key: str, status: int, *, content_type: bool) -> None:
    """The probe of a connection gets JSON, also for a wrong key; each model has the `id` that Open WebUI reads.

    backend/open_webui/routers/openai.py: `send_get_request`, without a content type, and `verify_connection`, with one.
    """

    async def main() -> None:
        headers = {**AIOHTTP, "authorization": f"Bearer {key}"}
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        fields += "content-type: application/json\r\n" if content_type else ""
        async with site(a={}) as opened:
            async with answer(opened.port, f"GET /v1/models HTTP/1.1\r\nhost: g\r\n{fields}\r\n".encode()) as got:
                body = json.loads(await got.body())
            assert (got.status, got.headers["content-type"]) == (status, "application/json")
            assert (
                body["error"]["message"] if status == 401 else [row["id"] for row in body["data"]] == ["m", "scripted"]
            )

    run_real(main())


@pytest.mark.parametrize("headers", [{}, USER])
def test_a_chat_of_open_webui(headers: Mapping[str, str]) -> None:
    """A stream with `include_usage` is hedged and ends with the usage; the headers about the user reach no replica.

    backend/open_webui/routers/openai.py: `generate_chat_completion`; the content type selects its streaming path.
    """

    async def main() -> None:
        async with model_replicas("/", silent=3600.0, quick=0.0) as replicas:
            urls = {name: replica.url for name, replica in replicas.items()}
            async with fronting(urls, keys=KEYS, hedge=HEDGE) as opened:
                results = []
                for _ in range(2):
                    async with answer(opened.port, asking(STREAM, {**AIOHTTP, **headers})) as got:
                        events = [line[6:] for line in (await got.body()).splitlines() if line.startswith(b"data: ")]
                    assert "text/event-stream" in got.headers["content-type"]
                    assert "content-encoding" not in got.headers
                    assert (events[-1], json.loads(events[-2])["choices"]) == (b"[DONE]", [])
                    assert json.loads(events[-2])["usage"]["completion_tokens"] == 10
                    results.append(got.headers["x-ttft-result"])
            assert "backup_won" in results
            received = [head.lower() for replica in replicas.values() for head, _ in replica.received]
            assert received
            assert not any(b"x-openwebui" in head or KEY.encode() in head for head in received)

    run_real(main())


@pytest.mark.parametrize("tokens_max", [1000, 4])
def test_a_task_of_open_webui(tokens_max: int) -> None:
    """Titles, tags and the others of the task model are whole answers: they are hedged, too, and answered with JSON.

    backend/open_webui/routers/tasks.py: `generate_title`, `generate_emoji` and others; `stream` is false and
    `stream_options` is removed.
    """
    task = {"model": "m", "messages": MESSAGES[1:], "stream": False, "max_tokens": tokens_max}

    async def main() -> None:
        async with site(silent={"faults": ["headers_silence"]}, quick={"ttft": "0ms"}) as opened:
            results = []
            for _ in range(2):
                async with answer(opened.port, asking(task)) as got:
                    body = json.loads(await got.body())
                assert (got.status, got.headers["content-type"]) == (200, "application/json")
                assert body["choices"][0]["message"]["content"]
                results.append(got.headers["x-ttft-result"])
            assert "backup_won" in results

    run_real(main())


def test_open_webui_gets_retry_after() -> None:
    """A 429 of every replica is JSON with `retry-after`, which Open WebUI passes on to its own client.

    backend/open_webui/routers/openai.py: `generate_chat_completion`, `retry_headers`.
    """

    async def main() -> None:
        async with site(a={"faults": ["429:7s,azure"]}, b={"faults": ["429:9s,azure"]}) as opened:
            async with answer(opened.port, asking(STREAM)) as got:
                body = json.loads(await got.body())
            assert (got.status, body["error"]["code"]) == (429, "upstream_rate_limited")
            assert int(got.headers["retry-after"]) >= 1

    run_real(main())


@pytest.mark.parametrize(
    "body", [STREAM, next(call.body for call in LIBRECHAT if call.body and call.body.get("stream"))]
)
@pytest.mark.parametrize("began", [True, False])
def test_a_user_who_stops_an_answer(body: Mapping[str, object], *, began: bool) -> None:
    """Before the first token and in the middle of an answer, the disconnect of a UI ends the work of each replica.

    Open WebUI: backend/open_webui/utils/session_pool.py, `stream_wrapper`, closes the connection. LibreChat: the
    `AbortSignal` in src/llm/openai/index.ts of @librechat/agents, `fetchWithTimeout`, does.
    """
    profile = {"faults": ["stall:3,3600s" if began else "headers_silence"]}

    async def main() -> None:
        async with site(a=profile, b=profile) as opened:
            stats = [server.stats for server in opened.replicas.values()]
            if began:
                async with answer(opened.port, asking(body)) as got:
                    await got.ttft_s()
                    await got.leave()
            else:
                _, writer = await connect(opened.port)
                writer.write(asking(body))
                await until(lambda: sum(each.requests for each in stats) == 2)
                writer.transport.abort()
            await opened.until_idle()
            assert sum(each.cancelled for each in stats) == sum(each.requests for each in stats) >= 1

    run_real(main())
