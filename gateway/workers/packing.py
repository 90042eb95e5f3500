"""Settings in the messages of a gateway's processes: models in groups, of which none holds an event loop for long.

A thousand models in one piece would hold it for 20 ms. A group is encoded once, and stays while its models are in use.
Secrets are included: no other program reads these messages, and no disk has them.
"""

import asyncio
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from gateway.config.settings import ModelSettings, Settings

GROUP_MODELS: Final = 16  # some 0.5 ms

_T = TypeVar("_T")


def packed(content: Settings | ModelSettings | Sequence[ModelSettings]) -> bytes:
    """Encode settings for another process of this gateway."""
    return pickle.dumps(content, pickle.HIGHEST_PROTOCOL)


def unpacked(content: bytes, kind: type[_T]) -> _T:
    """Decode settings that a process of this gateway has encoded.

    Raises:
        TypeError: the content is something else.
    """
    settings = pickle.loads(content)
    if not isinstance(settings, kind):
        raise TypeError(f"found {type(settings).__name__} instead of settings")
    return settings


class Prepare(msgspec.Struct):
    """Settings to prepare: of a reload, or of one model in which only replicas found at run time have changed.

    Attributes:
        settings: settings without models, packed.
        names: names of all models.
        changed: models that are others than in the settings in force, packed in groups.
        model: the model with other replicas, packed.
    """

    settings: bytes | None = None
    names: list[str] = []
    changed: list[bytes] = []
    model: bytes | None = None


async def change_to(new: Settings, old: Settings | None = None) -> Prepare:
    """Return the message for a reload: the models that are other objects than in `old`; None for all."""
    known = {} if old is None else {model.name: model for model in old.models}
    changed = []
    for group in _groups([model for model in new.models if known.get(model.name) is not model]):
        changed.append(packed(group))
        await asyncio.sleep(0)
    return Prepare(packed(new.model_copy(update={"models": ()})), [model.name for model in new.models], changed)


async def changed_by(prepare: Prepare, old: Mapping[str, ModelSettings]) -> Settings:
    """Return the settings of a reload.

    Args:
        old: models in force, by name.
    """
    models = dict(old)
    for content in prepare.changed:
        models |= {model.name: model for model in unpacked(content, tuple)}
        await asyncio.sleep(0)
    rest = unpacked(prepare.settings or b"", Settings)
    return rest.model_copy(update={"models": tuple(models[name] for name in prepare.names)})


class PackedSettings(msgspec.Struct):
    """Settings that have models in common.

    Attributes:
        groups: groups of all models.
        each: of each settings, the settings without models, packed, and the places of its models among all of them.
    """

    groups: list[bytes]
    each: list[tuple[bytes, list[int]]]

    def unpacked(self) -> list[Settings]:
        """Return the settings; common models are the same objects."""
        models: list[ModelSettings] = [model for group in self.groups for model in unpacked(group, tuple)]
        return [
            unpacked(rest, Settings).model_copy(update={"models": tuple(models[place] for place in places)})
            for rest, places in self.each
        ]


class Packer:
    """Encodes each model once until it is replaced."""

    def __init__(self) -> None:
        self._models: list[ModelSettings] = []  # of all groups
        self._groups: list[bytes] = []
        self._last: tuple[tuple[Settings, ...], PackedSettings] | None = None

    def add(self, *several: Settings) -> Iterator[None]:
        """Encode the models that are new; yields after each group."""
        wanted = {id(model): model for settings in several for model in settings.models}
        if len(self._models) > 2 * len(wanted) + GROUP_MODELS:  # most are in use no more
            self._models, self._groups = [], []
        known = set(map(id, self._models))
        for group in _groups([model for key, model in wanted.items() if key not in known]):
            self._groups.append(packed(group))
            self._models += group
            yield

    def of(self, *several: Settings) -> PackedSettings:
        """Return settings, packed."""
        if self._last is None or tuple(map(id, self._last[0])) != tuple(map(id, several)):
            for _ in self.add(*several):
                pass
            places = {id(model): place for place, model in enumerate(self._models)}
            each = [
                (packed(settings.model_copy(update={"models": ()})), [places[id(model)] for model in settings.models])
                for settings in several
            ]
            self._last = several, PackedSettings(self._groups, each)
        return self._last[1]


def _groups(models: Sequence[ModelSettings]) -> Iterator[tuple[ModelSettings, ...]]:
    return (tuple(models[begin : begin + GROUP_MODELS]) for begin in range(0, len(models), GROUP_MODELS))
