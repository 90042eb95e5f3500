"""Keys of callers from a list beside the settings: what a request looks up, and changes of it.

The table lives as long as its process, and changes in place, a few keys at a time: a hundred thousand keys are neither
copied nor hashed again when one is added, so that no step, on any thread, is long. It has digests of secrets, and no
secret. Reading the list belongs to gateway/config/key_list.py. Pure. Units: keys; requests and tokens per minute.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

from ttft_gateway.hedging.contract import ATTEMPTS_MAX

_SLICE: Final = 500  # keys that change between two turns of the event loop, about 1 ms
PARTS: Final = 61  # a prime: by a power of two, the keys of a part would collide in its dict

_K = TypeVar("_K")
_V = TypeVar("_V")


class Parted(Generic[_K, _V]):
    """A mapping in parts: a dict that grows is copied in one step, which takes 5 ms with 100,000 items.

    Attributes:
        parts: the parts.
    """

    def __init__(self, items: Iterable[tuple[_K, _V]] = ()) -> None:
        self.parts: list[dict[_K, _V]] = [{} for _ in range(PARTS)]
        for key, value in items:
            self[key] = value

    def get(self, key: _K) -> _V | None:
        """Return the value of a key; None if it is absent."""
        return self.parts[hash(key) % PARTS].get(key)

    def setdefault(self, key: _K, value: _V) -> _V:
        """Return the value of a key, which is this one if it was absent."""
        return self.parts[hash(key) % PARTS].setdefault(key, value)

    def pop(self, key: _K) -> _V | None:
        """Remove a key; return its value, None if it was absent."""
        return self.parts[hash(key) % PARTS].pop(key, None)

    def items(self) -> Iterator[tuple[_K, _V]]:
        """Yield keys with values."""
        for part in self.parts:
            yield from part.items()

    def clear(self) -> None:
        """Remove all keys, part by part."""
        for part in self.parts:
            part.clear()

    def __setitem__(self, key: _K, value: _V) -> None:
        self.parts[hash(key) % PARTS][key] = value

    def __contains__(self, key: object) -> bool:
        return key in self.parts[hash(key) % PARTS]

    def __iter__(self) -> Iterator[_K]:
        for part in self.parts:
            yield from part

    def __len__(self) -> int:
        return sum(map(len, self.parts))


class KeyRule(msgspec.Struct, frozen=True, array_like=True):
    """Rights and limits of a key; None for no limit.

    Attributes:
        models: names of the models that it may use; None for all.
        hedge, attempts_max: limits on the attempts of its requests.
    """

    models: frozenset[str] | None = None
    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    concurrency: int | None = None
    hedge: bool = True
    attempts_max: int = ATTEMPTS_MAX


USUAL: Final = KeyRule()


class ListedKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One key.

    Attributes:
        digest: SHA-256 of its secret.
        previous: the same of a secret that was replaced and is still valid; None for none.
    """

    name: str
    digest: bytes
    previous: bytes | None = None
    rule: KeyRule = USUAL


class KeyChange(msgspec.Struct):
    """A change of the list.

    Attributes:
        changed: new keys, and changed ones as they are now.
        removed: names of the removed keys.
    """

    changed: list[ListedKey] = []
    removed: list[str] = []


class ListedKeys:
    """The keys of the list.

    Attributes:
        by_name: all keys.
        names: names by digest.
        previous: names by digest of a replaced secret.
        listeners: called with the key before and after a change, None for no key.
    """

    def __init__(self) -> None:
        self.by_name = Parted[str, ListedKey]()
        self.names = Parted[bytes, str]()
        self.previous = Parted[bytes, str]()
        self.listeners: list[Callable[[ListedKey | None, ListedKey | None], object]] = []
        self._rules: dict[KeyRule, KeyRule] = {USUAL: USUAL}  # one object for all keys with the same

    def apply(self, change: KeyChange) -> Iterator[None]:
        """Change the list; yields after each slice, so that the event loop can go on. Removed keys are first."""
        count = 0
        for name in change.removed:
            self._replace(name, None)
            count += 1
            if count % _SLICE == 0:
                yield
        for key in change.changed:
            self._replace(key.name, key)
            count += 1
            if count % _SLICE == 0:
                yield

    def _replace(self, name: str, key: ListedKey | None) -> None:
        before = self.by_name.pop(name)
        if before is not None:
            self._forget(before)
        if key is not None:
            rule = self._rules.setdefault(key.rule, key.rule)
            key = key if rule is key.rule else ListedKey(key.name, key.digest, key.previous, rule)
            self.by_name[name] = key
            self.names[key.digest] = name
            if key.previous is not None:
                self.previous[key.previous] = name
        for listener in self.listeners:
            listener(before, key)

    def _forget(self, key: ListedKey) -> None:
        """Forget the secrets of a key, unless another key has them since this change."""
        if self.names.get(key.digest) == key.name:
            self.names.pop(key.digest)
        if key.previous is not None and self.previous.get(key.previous) == key.name:
            self.previous.pop(key.previous)

    def rule(self, name: str) -> KeyRule | None:
        """Return the rule of a key; None if it is not in the list."""
        key = self.by_name.get(name)
        return None if key is None else key.rule


def difference(before: Parted[str, ListedKey], after: Parted[str, ListedKey]) -> KeyChange:
    """Return the change from one list to another."""
    parts = list(zip(before.parts, after.parts, strict=True))  # a key has the same part in both
    changed = [key for old, new in parts for name, key in new.items() if old.get(name) != key]
    return KeyChange(changed, [name for old, new in parts for name in old if name not in new])
