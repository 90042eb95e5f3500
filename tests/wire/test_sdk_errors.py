"""Errors as the OpenAI Python SDK raises them: the right class, status, code and param, whoever is at fault."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import openai
import pytest

from gateway.race import retry_plan
from gateway_fixture import serving
from race_scenarios import Settings
from running import run_real
from sdk_clients import HELLO, async_client, sync_client

GOOD: Settings = {"ttft": "5ms", "tokens": 3}
_BODY_MAX = 100_000
_KEY = "sk-right-right-right"


class Case(NamedTuple):
    """What the only replica does, and what the SDK must make of it."""

    fault: str
    raised: type[openai.APIStatusError]
    status: int
    code: str | None
    param: str | None = None


CASES = (
    # what an upstream says of the request is the caller's business
    Case("context_length", openai.BadRequestError, 400, "context_length_exceeded", "messages"),
    Case("content_policy", openai.BadRequestError, 400, "content_policy_violation"),
    Case("status:422", openai.UnprocessableEntityError, 422, None),
    Case("early_413", openai.APIStatusError, 413, "request_too_large"),
    Case("status:418", openai.APIStatusError, 418, None),
    Case("status:403", openai.PermissionDeniedError, 403, None),
    # its trouble is passed on when nothing else can be tried
    Case("429", openai.RateLimitError, 429, "upstream_rate_limited"),
    Case("status:408", openai.APIStatusError, 408, None),
    Case("status:409", openai.ConflictError, 409, None),
    Case("500", openai.InternalServerError, 500, None),
    Case("503", openai.InternalServerError, 503, None),
    Case("status:529", openai.InternalServerError, 529, None),
    # its key and its name for the model are the gateway's business
    Case("401", openai.InternalServerError, 502, "upstream_misconfigured"),
    Case("404", openai.InternalServerError, 502, "upstream_misconfigured"),
    # what is no answer
    Case("empty", openai.InternalServerError, 502, "upstream_cut"),
    Case("done", openai.InternalServerError, 502, "upstream_empty"),
    Case("reset", openai.InternalServerError, 502, "upstream_cut"),
    Case("reset_accept", openai.InternalServerError, 502, "upstream_cut"),
    Case("silence", openai.InternalServerError, 504, "upstream_timeout"),
    Case("headers_silence", openai.InternalServerError, 504, "upstream_timeout"),
    Case("error_frame", openai.InternalServerError, 500, "internal_error"),
    Case("error_event", openai.InternalServerError, 500, "internal_error"),
    Case("json_error", openai.InternalServerError, 500, "engine_dead"),
)


async def _raises(client: openai.AsyncOpenAI, model: str, case: Case) -> None:
    for streaming in (False, True):
        with pytest.raises(case.raised) as caught:
            await client.chat.completions.create(model=model, messages=HELLO, stream=streaming)
        error = caught.value
        assert type(error) is case.raised
        assert (error.status_code, error.code, error.param) == (case.status, case.code, case.param)
        assert error.type
        assert error.request_id


@pytest.mark.parametrize("silent", [False, True])
def test_every_failure_has_its_class(
    subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch, *, silent: bool
) -> None:
    """A failure before the first token has a real status, streamed or not, and the fields of an OpenAI error."""
    for pause in ("_ROUND_S_MIN", "_ROUND_S_SPREAD", "_RETRY_S_SPREAD"):
        monkeypatch.setattr(retry_plan, pause, 0.0)
    cases = [case for case in CASES if (case.code == "upstream_timeout") is silent]
    timeouts = {"ttft_failover": "200ms", "ttft_max": "300ms"} if silent else {}

    async def main() -> None:
        async with (
            serving({"a": GOOD}, models=len(cases), timeouts=timeouts) as site,
            async_client(site.url) as client,
        ):
            assert site.gateway is not None
            for upstream in site.gateway.in_force.topology.clients.values():
                upstream.close()  # no spare stands ready: each case meets its own connections
            for number, case in enumerate(cases):  # each asks a model of its own, with a closed breaker
                site.replicas["a"].configure(faults=[case.fault])
                with subtests.test(case.fault):
                    await _raises(client, f"m{number}", case)

    run_real(main())


def test_no_connection_is_a_502() -> None:
    """A replica that does not listen gives the SDK a status, not a connection error."""

    async def main() -> None:
        async with serving({"a": GOOD}) as site, async_client(site.url) as client:
            site.replicas["a"].stop_listening()
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(model="m", messages=HELLO)
            assert caught.value.status_code == 502

    run_real(main())


def test_the_synchronous_client_raises_alike() -> None:
    """The same classes from a thread, for one error of each side."""

    def check(url: str) -> None:
        with sync_client(url) as client:
            with pytest.raises(openai.BadRequestError):
                client.chat.completions.create(model="m", messages=HELLO)
            with pytest.raises(openai.NotFoundError):
                client.chat.completions.create(model="no-such-model", messages=HELLO, stream=True)

    async def main() -> None:
        async with serving({"a": {**GOOD, "faults": ["context_length"]}}) as site:
            await asyncio.to_thread(check, site.url)

    run_real(main())


def _count(profiles: dict[str, Settings], ask: Callable[[openai.AsyncOpenAI], Awaitable[object]]) -> int:
    """How many requests reach the replicas when an SDK with its usual two retries asks once."""

    async def main() -> int:
        async with serving(profiles) as site, async_client(site.url, retries=2) as client:
            await ask(client)
            return site.reached

    return run_real(main())


def test_the_sdk_does_not_repeat_what_the_gateway_has_tried() -> None:
    """When every replica has failed, `x-should-retry: false` keeps the SDK from trying them all again."""

    async def ask(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="m", messages=HELLO)

    broken: Settings = {**GOOD, "faults": ["500"]}
    assert _count({"a": broken, "b": broken}, ask) == 4  # of each replica one more after a pause


def test_the_sdk_waits_as_long_as_the_upstream_says() -> None:
    """A 429 keeps its Retry-After, so that the SDK waits and its next request is answered."""
    limited: Settings = {**GOOD, "provider": "openai", "faults": ["429:200ms once"]}

    async def ask(client: openai.AsyncOpenAI) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await client.chat.completions.create(model="m", messages=HELLO)
        assert loop.time() - began_s >= 0.2

    assert _count({"a": limited}, ask) == 2


@pytest.mark.parametrize("streaming", [False, True])
def test_a_failed_replica_costs_the_client_nothing(*, streaming: bool) -> None:
    """While another replica can answer, the SDK sees no error at all."""

    async def ask(client: openai.AsyncOpenAI) -> None:
        for _ in range(4):
            await client.chat.completions.create(model="m", messages=HELLO, stream=streaming)

    assert _count({"a": {**GOOD, "faults": ["500"]}, "b": GOOD}, ask) >= 4


class Asked(NamedTuple):
    """What the SDK is told to ask, and the exception it must raise: the gateway itself refuses it."""

    raised: type[openai.APIStatusError]
    status: int
    code: str | None
    fields: Mapping[str, object] = {}
    key: str = _KEY


SDK_CASES = {
    "wrong key": Asked(openai.AuthenticationError, 401, "invalid_api_key", key="sk-wrong"),
    "unknown model": Asked(openai.NotFoundError, 404, "model_not_found", {"model": "gpt-9"}),
    "n": Asked(openai.BadRequestError, 400, None, {"n": 99}),
    "too large": Asked(openai.APIStatusError, 413, "request_too_large", {"user": "x" * _BODY_MAX}),
    "headers": Asked(openai.APIStatusError, 431, "headers_too_large", {"extra_headers": {"x-bomb": "x" * 80_000}}),
}


async def _refused(client: openai.AsyncOpenAI, asked: Asked) -> None:
    fields: dict[str, Any] = {"model": "m", "messages": HELLO, **asked.fields}
    for streaming in (False, True):
        with pytest.raises(asked.raised) as caught:
            await client.chat.completions.create(**fields, stream=streaming)
        assert type(caught.value) is asked.raised
        assert caught.value.status_code == asked.status
        assert asked.code in (None, caught.value.code)


def test_the_sdk_raises_what_fits(subtests: pytest.Subtests) -> None:
    """What the gateway refuses becomes the SDK's exception for it, streaming and not, and no replica is asked."""

    async def main() -> None:
        limits = {"request_body_max": f"{_BODY_MAX}B"}
        async with serving({"a": GOOD}, keys=[{"name": "team", "key": _KEY}], limits=limits) as site:
            for name, asked in SDK_CASES.items():
                with subtests.test(name):
                    async with async_client(site.url, key=asked.key) as client:
                        await _refused(client, asked)
            assert site.reached == 0

    run_real(main())


def test_the_sdk_learns_what_does_not_exist() -> None:
    """Routes that the gateway does not serve are the SDK's NotFoundError, a wrong method its status error."""

    async def main() -> None:
        async with serving({"a": GOOD}) as site, async_client(site.url) as client:
            with pytest.raises(openai.NotFoundError) as caught:
                await client.post("/engines", body={"prompt": "a cat"}, cast_to=object)
            assert caught.value.code == "unknown_url"
            with pytest.raises(openai.APIStatusError) as wrong:
                await client.get("/chat/completions", cast_to=object)
            assert wrong.value.status_code == 405

    run_real(main())
