"""The headers of a caller on their way: its ids in answer, log and upstream request, and the headers passed on."""

import json

import pytest

from gateway.events import RequestEnded, RequestRejected
from gateway_fixture import serving
from raw_http import ASK, answer, request_bytes
from running import run_real

_TRACE = "0af7651916cd43dd8448eb211c80319c"
_PARENT = f"00-{_TRACE}-b7ad6b7169203331-01"
_WHOLE = json.dumps({**ASK, "stream": False}).encode()


@pytest.mark.parametrize("body", [_WHOLE, json.dumps(ASK).encode()])
def test_a_callers_id_is_kept(body: bytes) -> None:
    """The caller's `x-request-id` is in the answer, at the replica and in the log, its trace id in the log."""

    async def main() -> None:
        async with serving({"a": {}}) as site:
            headers = {"x-request-id": "call-1", "traceparent": _PARENT}
            async with answer(site.port, request_bytes(body, headers=headers)) as got:
                await got.body()
                assert (got.headers["x-request-id"], got.headers["x-upstream-request-id"]) == ("call-1", "call-1")
            (ended,) = [event for event in site.events if isinstance(event, RequestEnded)]
            assert (ended.request_id, ended.trace_id) == ("call-1", _TRACE)

    run_real(main())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages/count_tokens", "/v1/models", "/nowhere"])
def test_an_error_has_the_callers_id(path: str) -> None:
    """A request that no replica receives keeps its id, too, in the answer and in the log."""

    async def main() -> None:
        async with serving({"a": {}}) as site:
            headers = {"x-request-id": "call-1", "traceparent": _PARENT}
            async with answer(site.port, request_bytes(b"{", path, headers=headers)) as got:
                assert (got.status // 100, got.headers["x-request-id"]) == (4, "call-1")
            logged = [event for event in site.events if isinstance(event, RequestRejected)]
            assert [(event.request_id, event.trace_id) for event in logged] in ([], [("call-1", _TRACE)])

    run_real(main())


def test_an_id_of_another_form_is_replaced() -> None:
    """An id that could forge a log line or a header is neither answered, nor logged, nor sent to a replica."""

    async def main() -> None:
        async with serving({"a": {}}) as site:
            async with answer(site.port, request_bytes(_WHOLE, headers={"x-request-id": "a b"})) as got:
                await got.body()
            (ended,) = [event for event in site.events if isinstance(event, RequestEnded)]
            assert got.headers["x-request-id"] == ended.request_id
            assert ended.request_id.startswith("req_")
            assert got.headers["x-upstream-request-id"].startswith("sim-")

    run_real(main())
