"""examples/voice.yaml: the settings of a gateway for voice, with a replica that is silent."""

import asyncio

from checkout import ROOT
from gateway.config.loader import load
from gateway.events import RequestEnded
from gateway_fixture import serving
from raw_http import answer, asking
from running import run_real

NAMES = ("VOICE_KEY", "AZURE_EU_KEY", "OPENAI_API_KEY")


def test_a_voice_gateway_hedges_against_silence() -> None:
    """The file is valid; with the model's hedging and timeouts, an answer comes although a replica is silent."""

    async def main() -> None:
        settings = await asyncio.to_thread(load, ROOT / "examples/voice.yaml", {name: name.lower() for name in NAMES})
        assert settings.model_dump(exclude_unset=True) == settings.model_dump(exclude_unset=True, exclude_defaults=True)
        chosen = settings.models[0].model_dump(mode="json", by_alias=True, exclude_unset=True)
        profiles: dict[str, dict[str, object]] = {"a": {"faults": ["headers_silence"]}, "b": {"ttft": "0ms"}}
        hedge = {**chosen["hedge"], "routing": "round_robin"}
        own = {"hedge": hedge, "timeouts": chosen["timeouts"]}
        async with serving(profiles, model=own) as site:
            for _ in range(2):
                async with answer(site.port, asking()) as got:
                    await got.body()
                    assert (got.status, got.headers["x-ttft-replica"]) == (200, "b")
            ended = [event for event in site.events if isinstance(event, RequestEnded)]
            assert {event.ttft_target_s for event in ended} == {2.0}
            assert max(len(event.attempts) for event in ended) == 2

    run_real(main())
