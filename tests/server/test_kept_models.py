"""Reloads of many models: what has not changed is kept whole, and the rest is built in steps."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.config.settings import Settings
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from gateway.server import topology
from gateway.server.credentials.board import TokenBoard
from gateway.server.model_parts import Foundation
from gateway.server.topology import Topology, build_in_steps, build_topology
from running import run_virtual
from ttft_gateway.limits.ledger import LedgerRegistry
from ttft_gateway.limits.rates import LOCAL
from ttft_gateway.routing.replicas import Replica

MODELS = 40


def _settings(*, models: int = MODELS, row: dict[str, Any] | None = None, **others: object) -> Settings:
    def replica(name: str) -> dict[str, object]:
        return {"name": name, "kind": "vllm", "base_url": f"http://10.0.0.1:8{ord(name)}/v1", **(row or {})}

    listed = [{"name": f"m{number}", "replicas": [replica("a"), replica("b")]} for number in range(models)]
    return Settings.model_validate({"models": listed, **others})


def _on_a_loop(main: Callable[[Foundation], object]) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        runtime = Runtime(loop, lambda _: None, lambda: 0.5, TimerQueue(loop))
        async with asyncio.TaskGroup() as tasks:
            main(Foundation(tasks, runtime, LOCAL, None, TokenBoard(loop.time)))

    run_virtual(run())


def _reloaded(foundation: Foundation, old: Topology, new: Settings) -> Topology:
    built = build_topology(new.keeping(old.settings), foundation, old)
    built.take_over(old, 0.0)
    return built


def _kept(old: Topology, new: Topology) -> int:
    return sum(parts is old.parts.get(name) for name, parts in new.parts.items())


def test_models_that_are_the_same_are_the_same_objects() -> None:
    """Equal values are not enough: a value that is set to its default hides the one of the top level."""
    old = _settings()
    assert [new is was for new, was in zip(_settings().keeping(old).models, old.models, strict=True)] == [True] * MODELS
    fallback = {"name": "m0", "replicas": [{"name": "a", "kind": "vllm", "base_url": "http://10.0.0.1/v1"}]}
    plain, explicit = (
        Settings.model_validate({"models": [{**fallback, "hedge": hedge}]}) for hedge in ({}, {"budget": "10%"})
    )
    assert plain.models[0].hedge == explicit.models[0].hedge
    assert explicit.keeping(plain).models[0] is explicit.models[0]


def test_one_model_more_builds_one_model() -> None:
    """All other models stay whole, with their replicas, and each may be tried again after a cool-down."""

    def main(foundation: Foundation) -> None:
        old = build_topology(_settings(), foundation)
        old.replicas["m0", "a"].breaker.cooling_until_s = 100.0
        new = _reloaded(foundation, old, _settings(models=MODELS + 1))
        assert (_kept(old, new), len(new.models)) == (MODELS, MODELS + 1)
        assert new.replicas.keys() - old.replicas.keys() == {(f"m{MODELS}", "a"), (f"m{MODELS}", "b")}
        assert all(new.replicas[named] is replica for named, replica in old.replicas.items())
        assert new.replicas["m0", "a"].breaker.cooling_until_s == 0.0
        less = _reloaded(foundation, new, _settings(models=2))
        assert (_kept(new, less), len(less.replicas), len(less.drained)) == (2, 4, 2 * (MODELS - 1))

    _on_a_loop(main)


@pytest.mark.parametrize(
    ("row", "others", "after"),
    [
        ({}, {}, {"limits": {"event_max": "1MB"}}),
        ({}, {}, {"hedge": {"budget": "5%"}}),
        ({"base_url": "https://api.example/v1"}, {}, {}),
        ({"kind": "openai"}, {}, {}),
    ],
)
def test_what_is_built_again(row: dict[str, Any], others: dict[str, Any], after: dict[str, Any]) -> None:
    """Another setting at the top level, certificates and quotas may concern every model."""

    def main(foundation: Foundation) -> None:
        old = build_topology(_settings(row=row, **others), foundation)
        assert _kept(old, _reloaded(foundation, old, _settings(row=row, **others, **after))) == 0

    _on_a_loop(main)


def test_steps() -> None:
    """Building yields between a few models each; a switch that is used meanwhile stays in force."""

    def main(foundation: Foundation) -> None:
        old = build_topology(_settings(), foundation)
        steps = build_in_steps(_settings(hedge={"budget": "5%"}), foundation, old)
        built: list[Topology] = []

        def all_steps() -> Iterator[None]:
            built.append((yield from steps))

        count = 0
        for _ in all_steps():
            count += 1
            old.models["m0"].pools[0].hedging_on = False
        [new] = built
        new.take_over(old, 0.0)
        assert count >= MODELS // 2
        assert [model.pools[0].hedging_on for model in new.models.values()] == [False] + [True] * (MODELS - 1)

    _on_a_loop(main)


@pytest.mark.parametrize("row", [{"base_url": "http://10.0.0.2/v1"}, {"api_key": "new"}])
def test_steps_of_new_rows(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all replicas are others, no step looks at all of them, and nothing is done for those that stay in."""
    count, calls = 5 * MODELS, Counter[str]()

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def count_it(*args: Any, **named: Any) -> Any:
            calls[name] += 1
            return call(*args, **named)

        return count_it

    monkeypatch.setattr(topology, "_keyed", counted("keyed", topology._keyed))
    monkeypatch.setattr(LedgerRegistry, "rekey", counted("rekey", LedgerRegistry.rekey))
    monkeypatch.setattr(Replica, "take_out", counted("take_out", Replica.take_out))
    quotas = {"kind": "openai", "base_url": "http://10.0.0.1/v1", "api_key": "old"}

    def main(foundation: Foundation) -> None:
        old = build_topology(_settings(models=count, row=quotas), foundation)
        steps = build_in_steps(_settings(models=count, row={**quotas, **row}), foundation, old)
        built: list[Topology] = []

        def all_steps() -> Iterator[None]:
            built.append((yield from steps))

        for _ in all_steps():
            assert calls.total() <= 100, calls
            calls.clear()
        built[0].take_over(old, 0.0)
        assert not calls

    _on_a_loop(main)
