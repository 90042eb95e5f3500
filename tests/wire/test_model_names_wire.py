"""Several names of one model over real sockets: aliases and the default model share its pool, limits and log."""

import json
from collections.abc import Mapping

import pytest

from gateway.events import RequestEnded
from gateway_fixture import Site, serving
from raw_http import ASK, answer, request_bytes
from running import run_real

_KEYS = [{"name": "all", "key": "sk-all"}, {"name": "one", "key": "sk-one", "models": ["m"]}]
_COUNT = "/v1/messages/count_tokens"


async def _status(site: Site, body: Mapping[str, object], key: str, path: str = "/v1/chat/completions") -> int:
    headers = {"authorization": f"Bearer {key}"}
    async with answer(site.port, request_bytes(json.dumps(body).encode(), path, headers=headers)) as got:
        await got.body()
        return got.status


@pytest.mark.parametrize("key", ["sk-all", "sk-one"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", _COUNT])
def test_an_alias_is_its_model(key: str, path: str) -> None:
    """A request with an alias is served by the model's replicas under the model's name, for every key of the model."""

    async def main() -> None:
        async with serving({"a": {}}, keys=_KEYS, model={"aliases": ["gpt-4o"], "concurrency": 1}) as site:
            for name in ("m", "gpt-4o"):
                assert await _status(site, {**ASK, "model": name}, key, path) == 200
            ended = [event for event in site.events if isinstance(event, RequestEnded)]
            assert [event.model for event in ended] == ([] if path == _COUNT else ["m", "m"])
            assert site.reached == len(ended)

    run_real(main())


@pytest.mark.parametrize("stream", [True, False])
def test_the_default_model_serves_the_rest(*, stream: bool) -> None:
    """A missing or unknown model is served by the default one; the log and the labels of metrics have its name."""

    async def main() -> None:
        body = {**ASK, "stream": stream}
        async with serving({"a": {}}, default_model="m") as site:
            for named in ({**body, "model": "claude-9"}, {key: body[key] for key in ("messages", "stream")}):
                assert await _status(site, named, "") == 200
                assert await _status(site, named, "", _COUNT) == 200
            ended = [event for event in site.events if isinstance(event, RequestEnded)]
            assert [event.model for event in ended] == ["m", "m"]
            assert await _status(site, {"messages": 1}, "") == 400
            assert await _status(site, {}, "") == 400

    run_real(main())


def test_a_key_needs_the_default_model() -> None:
    """A key without the default model gets the usual error for an unknown one."""

    async def main() -> None:
        keys = [_KEYS[0], {"name": "other", "key": "sk-m1", "models": ["m1"]}]
        async with serving({"a": {}}, keys=keys, models=2, default_model="m0") as site:
            assert await _status(site, {**ASK, "model": "gpt-9"}, "sk-all") == 200
            assert await _status(site, {**ASK, "model": "gpt-9"}, "sk-m1") == 404

    run_real(main())


def test_aliases_are_listed() -> None:
    """GET /v1/models lists names and aliases of the models that the key may use."""

    async def main() -> None:
        async with serving({"a": {}}, keys=_KEYS, model={"aliases": ["gpt-4o"]}) as site:
            headers = {"authorization": "Bearer sk-one"}
            async with answer(site.port, request_bytes(b"", "/v1/models", headers=headers, method="GET")) as got:
                assert [model["id"] for model in json.loads(await got.body())["data"]] == ["m", "gpt-4o"]
            request = request_bytes(b"", "/v1/models/gpt-4o", headers=headers, method="GET")
            async with answer(site.port, request) as got:
                assert json.loads(await got.body())["id"] == "gpt-4o"

    run_real(main())
