"""Keys of callers from a list beside the settings: what a request looks up, and changes of it.

The table lives as long as its process, and changes in place, a few keys at a time: a hundred thousand keys are neither
copied nor hashed again when one is added. It has digests of secrets, and no secret. Reading the list belongs to
gateway/config/key_list.py. Pure. Units: keys; requests and tokens per minute.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from ttft_gateway.hedging.contract import ATTEMPTS_MAX

_SLICE: Final = 500  # keys that change between two turns of the event loop, about 1 ms


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
        self.by_name: dict[str, ListedKey] = {}
        self.names: dict[bytes, str] = {}
        self.previous: dict[bytes, str] = {}
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
        before = self.by_name.pop(name, None)
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
            del self.names[key.digest]
        if key.previous is not None and self.previous.get(key.previous) == key.name:
            del self.previous[key.previous]

    def rule(self, name: str) -> KeyRule | None:
        """Return the rule of a key; None if it is not in the list."""
        key = self.by_name.get(name)
        return None if key is None else key.rule


def difference(before: Mapping[str, ListedKey], after: Mapping[str, ListedKey]) -> KeyChange:
    """Return the change from one list to another."""
    changed = [key for name, key in after.items() if before.get(name) != key]
    return KeyChange(changed, [name for name in before if name not in after])
