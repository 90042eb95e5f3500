"""Upstreams that quote the gateway's key: neither clients nor logs contain it."""

import pytest

from gateway.config import settings as config
from gateway.server.upstreams import secrets_of
from scripted import Scripted, Step, answer, run_race, text
from ttft_gateway.apis.base import Frame, FrameKind
from ttft_gateway.apis.errors import BadStatus, ErrorFrame, UpstreamError
from ttft_gateway.pool.pool import Pool

KEY = "sk-of-the-gateway"


def row(**given: object) -> config.ReplicaSettings:
    """A replica as a file has it."""
    return config.ReplicaSettings.model_validate({"name": "a", "kind": "vllm", "base_url": "http://h:1/v1", **given})


def test_what_is_secret_of_a_replica() -> None:
    """Its key and the values of its headers are, but for values so short that they are found in any text."""
    assert secrets_of(row()) == ()
    assert secrets_of(row(api_key="none")) == ()
    assert secrets_of(row(api_key=KEY, headers={"x-tenant": "tenant-secret", "x-n": "1"})) == (KEY, "tenant-secret")


@pytest.mark.parametrize(
    "steps",
    [
        [(0.01, BadStatus(f"bad key {KEY}", status=400, kind=KEY, param=KEY, code=f"no_{KEY}"))],
        [
            (0.01, text("a")),
            (
                0.02,
                Frame(FrameKind.ERROR, b"e", error=ErrorFrame(f"{KEY}!", status=500, kind=KEY, param=KEY, code=KEY)),
            ),
        ],
    ],
    ids=["status", "stream"],
)
def test_a_quoted_key_is_removed(steps: list[Step]) -> None:
    """The client's error and the report do not contain the key, before the first content and after it."""

    def prepare(pools: list[Pool]) -> None:
        pools[0].replicas[0].secrets = (KEY,)

    result = run_race(Scripted(steps), prepare=prepare)
    assert result.client.error is not None
    assert "****" in result.client.error.message
    assert KEY not in result.client.error.body().decode()
    assert KEY not in repr(result.report)


def test_an_error_without_words_has_none() -> None:
    """Hiding invents nothing: what is absent stays absent."""
    error = UpstreamError("cut")
    error.redact((KEY,))
    assert (error.message, error.kind, error.param, error.code) == ("cut", None, None, None)


def test_a_key_in_an_upstreams_request_id_is_removed() -> None:
    """A request id that contains the key reaches neither the client nor the log."""

    def prepare(pools: list[Pool]) -> None:
        pools[0].replicas[0].secrets = ("up-1",)  # what the scripted replica gives as its id

    result = run_race(Scripted(answer(0.01)), prepare=prepare)
    assert result.client.headers[b"x-upstream-request-id"] == b"****"
    assert "up-1" not in repr(result.report)
