"""The client for Azure of the OpenAI SDK: works with the gateway as its endpoint, and names the model in the path."""

import openai
import pytest

from gateway.api.request_head import deployment_of
from gateway.events import RequestEnded
from gateway_fixture import Site, serving
from raw_http import answer, request_bytes
from running import run_real
from sdk_clients import HELLO, azure_client
from ttft_gateway.apis.base import Api

_KEYS = [{"name": "team", "key": "sk-team"}]


def _endpoint(site: Site) -> str:
    return site.url.removesuffix("/v1")


@pytest.mark.parametrize("deployment", [None, "gpt-4o"])
def test_azures_client(deployment: str | None) -> None:
    """Chat completions, streamed or not, completions and embeddings, with `api-key` and a model in the path."""

    async def main() -> None:
        async with (
            serving({"a": {"tokens": 3}}, keys=_KEYS, model={"aliases": ["gpt-4o"]}) as site,
            azure_client(_endpoint(site), key="sk-team", deployment=deployment) as client,
        ):
            whole = await client.chat.completions.create(model="gpt-4o", messages=HELLO)
            assert whole.choices[0].message.content
            chunks = [
                chunk async for chunk in await client.chat.completions.create(model="m", messages=HELLO, stream=True)
            ]
            assert chunks[-1].choices[0].finish_reason
            assert (await client.completions.create(model="m", prompt="hello")).choices[0].text
            assert (await client.embeddings.create(model="m", input="hello")).data[0].embedding
            ended = [event for event in site.events if isinstance(event, RequestEnded)]
            assert [(event.model, event.key_name, event.status) for event in ended] == [("m", "team", 200)] * 4

    run_real(main())


def test_azures_client_gets_errors() -> None:
    """A wrong key is a 401 and an unknown deployment a 404, each with the exception of the SDK."""

    async def main() -> None:
        async with serving({"a": {}}, keys=_KEYS) as site:
            async with azure_client(_endpoint(site), key="sk-wrong") as client:
                with pytest.raises(openai.AuthenticationError):
                    await client.chat.completions.create(model="m", messages=HELLO)
            async with azure_client(_endpoint(site), key="sk-team") as client:
                with pytest.raises(openai.NotFoundError) as caught:
                    await client.chat.completions.create(model="gpt-9", messages=HELLO)
                assert caught.value.code == "model_not_found"
            assert site.reached == 0

    run_real(main())


@pytest.mark.parametrize("model", [b"", b'"model":"gpt-9",', b'"model":"m",'])
def test_the_model_of_the_path_counts(model: bytes) -> None:
    """The body needs no model; if there is one, the model of the path is used."""

    async def main() -> None:
        body = b'{%b"messages":[{"role":"user","content":"hello"}]}' % model
        async with serving({"a": {}}, models=2) as site:
            path = "/openai/deployments/m1/chat/completions?api-version=2024-10-21"
            async with answer(site.port, request_bytes(body, path)) as got:
                assert got.status == 200
                await got.body()
            assert [event.model for event in site.events if isinstance(event, RequestEnded)] == ["m1"]

    run_real(main())


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/openai/deployments/m/chat/completions", (Api.CHAT, "m")),
        ("/openai/deployments/org/m/chat/completions", (Api.CHAT, "org/m")),
        ("/openai/deployments/m/completions", (Api.COMPLETIONS, "m")),
        ("/openai/deployments/chat/completions", (Api.COMPLETIONS, "chat")),
        ("/openai/deployments/m/embeddings", (Api.EMBEDDINGS, "m")),
        ("/openai/deployments//chat/completions", None),
        ("/openai/deployments/m/images/generations", None),
        ("/openai/deployments/m/chat/completions/x", None),
        ("/v1/chat/completions", None),
    ],
)
def test_paths(path: str, named: tuple[Api, str] | None) -> None:
    """The model is all between `deployments` and the API."""
    assert deployment_of(path) == named
