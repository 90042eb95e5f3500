"""Settings in messages: each model once, and few models in one piece."""

import asyncio
import pickle
from collections.abc import Coroutine

import pytest

from gateway.config.loader import from_replicas
from gateway.config.settings import ModelSettings, Settings
from gateway.workers import packing
from gateway.workers.packing import GROUP_MODELS, Packer, Prepare, change_to, changed_by, unpacked
from running import run_virtual

MODELS = 100


def _settings(models: int = MODELS, **others: object) -> Settings:
    one = from_replicas("m0", ["http://127.0.0.1:9"])
    named = tuple(one.models[0].model_copy(update={"name": f"m{number}"}) for number in range(models))
    return one.model_copy(update={"models": named, **others})


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of models that are encoded in one piece."""
    counts: list[int] = []
    encode = packing.packed

    def counting(content: object) -> bytes:
        counts.append(len(content) if isinstance(content, tuple) else len(getattr(content, "models", "1")))
        return encode(content)  # type: ignore[arg-type]

    monkeypatch.setattr(packing, "packed", counting)
    return counts


def _turns_while(change: Coroutine[object, object, object]) -> int:
    """Return the turns of an event loop that a coroutine leaves to other tasks."""
    turns = 0

    async def main() -> None:
        nonlocal turns
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(change)
            while not task.done():
                await asyncio.sleep(0)
                turns += 1

    run_virtual(main())
    return turns


def test_a_reload_has_what_has_changed(encoded: list[int]) -> None:
    """Models that are other objects, and the names of all; a worker makes the new settings of its own and these."""
    old = _settings()
    new = _settings(MODELS + 1).keeping(old)

    async def main() -> tuple[Prepare, Settings]:
        prepare = await change_to(new, old)
        return prepare, await changed_by(prepare, {model.name: model for model in old.models})

    prepare, made = run_virtual(main())
    assert (len(prepare.names), sum(encoded)) == (MODELS + 1, 1)
    assert made == new
    assert all(one is other for one, other in zip(made.models[:MODELS], old.models, strict=True))


def test_a_reload_of_everything_is_encoded_and_decoded_in_turns(encoded: list[int]) -> None:
    """No turn of the event loop has more than a group of models."""
    new = _settings()
    prepare = run_virtual(change_to(new))
    assert max(encoded) == GROUP_MODELS
    assert max(len(unpacked(content, tuple)) for content in prepare.changed) == GROUP_MODELS
    assert _turns_while(change_to(new)) >= MODELS // GROUP_MODELS
    assert _turns_while(changed_by(prepare, {})) >= MODELS // GROUP_MODELS
    assert run_virtual(changed_by(prepare, {})) == new


def test_a_model_is_encoded_once_until_it_is_replaced(encoded: list[int]) -> None:
    """Settings that have models in common share them, before and after; the next settings add what is new."""
    packer, base = Packer(), _settings()
    found = base.model_copy(update={"models": (_settings(1).models[0], *base.models[1:])})
    state = packer.of(base, found)
    assert packer.of(base, found) is state
    assert (sum(encoded), max(encoded)) == (MODELS + 1, GROUP_MODELS)
    one, other = state.unpacked()
    assert (one, other) == (base, found)
    assert [model is same for model, same in zip(one.models, other.models, strict=True)] == [False] + [True] * 99
    encoded.clear()
    new = _settings(MODELS + 1).keeping(base)
    assert sum(1 for _ in packer.add(new)) == 1
    assert packer.of(new).unpacked() == [new]
    assert sum(encoded) == 1


def test_models_that_are_in_use_no_more_are_dropped() -> None:
    """What is kept is bounded by what is in use, however often everything changes."""
    packer = Packer()
    for _ in range(10):
        settings = _settings()
        packed = packer.of(settings)
        assert packed.unpacked() == [settings]
        assert sum(len(unpacked(group, tuple)) for group in packed.groups) <= 3 * MODELS + GROUP_MODELS


def test_something_else_is_no_settings() -> None:
    """A message of another kind is an error."""
    with pytest.raises(TypeError, match="found str instead of settings"):
        unpacked(pickle.dumps("x"), ModelSettings)
