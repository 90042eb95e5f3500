"""Keys from a list at run time: changes in force, lists that change nothing, and what requests find."""

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.admission.listed_limiters import Listed
from gateway.api.auth import Keyring
from gateway.api.serving import AttemptLimits, Serving
from gateway.config import key_list
from gateway.config.errors import ConfigError
from gateway.config.key_list import read_keys
from gateway.config.loader import from_replicas
from gateway.config.settings import Settings
from gateway.errors import ReloadFailed, Unauthorized
from gateway.events import Event
from gateway.listed_keys import USUAL, KeyChange, KeyRule, ListedKey, ListedKeys, Parted, difference
from gateway.process_events import KeysChanged
from gateway.race.context import Runtime
from gateway.race.deadlines import TimerQueue
from gateway.server import key_watch
from gateway.server.key_watch import KeyWatch, check_names, first_keys
from running import run_real
from ttft_gateway.limits.rates import LOCAL


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _key(name: str, secret: str, rule: KeyRule = USUAL, previous: str | None = None) -> ListedKey:
    return ListedKey(name, _digest(secret), None if previous is None else _digest(previous), rule)


def _name(ring: Keyring, secret: str) -> str | None:
    with contextlib.suppress(Unauthorized):
        return ring.name([(b"authorization", f"Bearer {secret}".encode())])
    return None


def test_requests_find_listed_keys() -> None:
    """A listed key is found by its secret, new and previous; a removed one is not, and no key at all is an error."""
    listed = ListedKeys()
    used: list[str] = []
    ring = Keyring({"own": "own"}, {}, on_previous=used.append, listed=listed)
    assert (ring.has_keys, Keyring({}, {}, listed=listed).has_keys) == (True, True)
    list(listed.apply(KeyChange([_key("a", "new", previous="old"), _key("b", "other")])))
    assert [_name(ring, secret) for secret in ("own", "new", "old", "other", "wrong")] == ["own", "a", "a", "b", None]
    assert used == ["a"]
    list(listed.apply(KeyChange([_key("a", "newer", previous="new")], ["b"])))
    assert [_name(ring, secret) for secret in ("newer", "new", "old", "other")] == ["a", "a", None, None]


def test_models_of_listed_keys() -> None:
    """A key may use its models by name and alias; a key without any, all of them."""
    listed = ListedKeys()
    same = ("llama", "llama-latest")
    ring = Keyring({}, {}, listed=listed, same_model=dict.fromkeys(same, same))
    rules = {"all": USUAL, "one": KeyRule(frozenset(["llama"])), "alias": KeyRule(frozenset(["llama-latest"]))}
    list(listed.apply(KeyChange([_key(name, name, rule) for name, rule in rules.items()])))
    may = {name: [ring.may_use(name, model) for model in (*same, "other")] for name in rules}
    assert may == {"all": [True, True, True], "one": [True, True, False], "alias": [True, True, False]}


def test_limits_of_listed_keys() -> None:
    """A limiter is made at the first request, and lives as long as its limits."""
    listed = Listed(LOCAL)
    limited, other = KeyRule(requests_per_min=1), KeyRule(requests_per_min=2)
    list(
        listed.keys.apply(
            KeyChange([_key("a", "a", limited), _key("b", "b"), _key("c", "c", KeyRule(tokens_per_min=9))])
        )
    )
    assert (listed.limiters.get("b"), listed.limiters.get("unknown"), listed.counts.get("c")) == (None, None, None)
    first = listed.limiters.get("a")
    list(listed.keys.apply(KeyChange([_key("a", "rotated", limited)])))
    assert first is not None
    assert (listed.limiters.get("a"), listed.limiters.in_use) == (first, {"a": first})
    list(listed.keys.apply(KeyChange([_key("a", "rotated", other)])))
    assert listed.limiters.get("a") is not first
    list(listed.keys.apply(KeyChange([], ["a"])))
    assert (listed.limiters.get("a"), listed.limiters.in_use) == (None, {})


def test_attempts_of_listed_keys() -> None:
    """`hedge` and `attempts_max` of a listed key count; other keys have the limits of the settings."""
    listed = ListedKeys()
    rules = {"usual": USUAL, "off": KeyRule(hedge=False), "one": KeyRule(attempts_max=1)}
    list(listed.apply(KeyChange([_key(name, name, rule) for name, rule in rules.items()])))
    own = {"own": AttemptLimits(hedge=False, attempts_max=2)}
    serving = Serving({}, None, None, None, None, None, None, own, None, listed)  # type: ignore[arg-type]
    assert [serving.attempts_of(name) for name in ("own", "usual", "off", "one")] == [
        own["own"],
        None,
        AttemptLimits(hedge=False, attempts_max=USUAL.attempts_max),
        AttemptLimits(hedge=False, attempts_max=1),
    ]


@pytest.mark.parametrize("seed", range(5))
def test_changes_lead_to_the_same_table(seed: int) -> None:
    """However keys come, go and exchange secrets, the table is as if it had been read anew."""
    rand, table, keys = random.Random(seed), ListedKeys(), Parted[str, ListedKey]()
    for _ in range(30):
        secrets = rand.sample(range(40), 20)
        names = rand.sample(range(12), rand.randrange(1, 10))
        after = {
            f"k{name}": _key(f"k{name}", f"s{secrets.pop()}", previous=rand.choice([None, f"s{secrets.pop()}"]))
            for name in names
        }
        list(table.apply(difference(keys, Parted(after.items()))))
        keys = Parted(after.items())
        assert dict(table.by_name.items()) == after
        assert dict(table.names.items()) == {key.digest: name for name, key in after.items()}
        assert dict(table.previous.items()) == {
            key.previous: name for name, key in after.items() if key.previous is not None
        }


class _Watched:
    """A watch over a file.

    Attributes:
        table: keys in force.
        events: emitted events.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.settings = _settings(file)
        self.table = ListedKeys()
        self.events: list[Event] = []
        loop = asyncio.get_running_loop()
        runtime = Runtime(loop, self.events.append, lambda: 0.5, TimerQueue(loop))
        self.watch = KeyWatch(file, lambda: self.settings, runtime, self._use)

    async def _use(self, change: KeyChange) -> None:
        list(self.table.apply(change))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():  # files have no event
                await asyncio.sleep(0.005)

    def changes(self) -> list[tuple[int, int, int, bool]]:
        """Return keys in force, changed and removed keys of each event, and whether it has an error."""
        found = [each for each in self.events if isinstance(each, KeysChanged)]
        return [(each.keys, each.changed, each.removed, each.error is not None) for each in found]


def _settings(file: Path) -> Settings:
    return from_replicas("llama", ["http://127.0.0.1:9"], others={"keys_from": str(file)})


def _write(file: Path, *names: str) -> None:
    new = file.with_name(".new")
    new.write_text("".join(f'{{"name": "{name}", "key": "secret-{name}"}}\n' for name in names), encoding="utf-8")
    new.rename(file)


async def _begun(file: Path) -> _Watched:
    watched = _Watched(file)
    await watched.watch.begin(await asyncio.to_thread(first_keys, watched.settings))
    return watched


def test_keys_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed file is in force without a reload; one with a mistake, without keys, or gone, changes nothing."""
    for name in ("_LOOK_S", "_SETTLED_S"):
        monkeypatch.setattr(key_watch, name, 0.01)
    file = tmp_path / "keys.jsonl"
    _write(file, "a", "b", "c")

    async def main() -> None:
        watched = await _begun(file)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(watched.watch.run())
            assert set(watched.table.by_name) == {"a", "b", "c"}
            await asyncio.to_thread(_write, file, "a", "b", "d")
            await watched.until(lambda: set(watched.table.by_name) == {"a", "b", "d"})
            for spoil in (lambda: file.write_text("{"), lambda: file.write_text(""), file.unlink):
                await asyncio.to_thread(spoil)
                await watched.until(lambda: watched.watch.fault is not None)
                assert set(watched.table.by_name) == {"a", "b", "d"}
                assert [each.value for each in watched.watch.values()] == [0.0, 3.0]
                await asyncio.to_thread(_write, file, "a", "b", "d")
                await watched.until(lambda: watched.watch.fault is None)
            running.cancel()
        assert [each.value for each in watched.watch.values()] == [1.0, 3.0]
        assert watched.changes()[0] == (3, 1, 1, False)
        assert [found for *_, found in watched.changes()[1:]].count(True) >= 3
        assert "secret" not in str(watched.events)

    run_real(main())


def test_a_list_that_lacks_most_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is used only if it stays as it is: a file that is written in place revokes nothing meanwhile."""
    file, waits_s = tmp_path / "keys.jsonl", list[float]()
    _write(file, "a", "b", "c")

    async def main() -> None:
        watched = await _begun(file)

        async def goes_on(state: object, for_s: float) -> bool:
            waits_s.append(for_s)
            await asyncio.to_thread(_write, file, "a", "b", "c", "d")
            return await asyncio.to_thread(key_watch._look, file) != state

        with monkeypatch.context() as patch:
            patch.setattr(watched.watch, "_is_changing", goes_on)
            await asyncio.to_thread(_write, file, "a")
            await watched.watch._follow()
            assert set(watched.table.by_name) == {"a", "b", "c"}
            await watched.watch._follow()
            assert set(watched.table.by_name) == {"a", "b", "c", "d"}
        assert waits_s == [5.0]
        monkeypatch.setattr(key_watch, "_DOUBT_S", 0.0)
        await asyncio.to_thread(_write, file, "a")
        await watched.watch._follow()
        assert set(watched.table.by_name) == {"a"}

    run_real(main())


def test_the_first_list_must_be_usable(tmp_path: Path) -> None:
    """A gateway does not start without keys."""
    with pytest.raises(ConfigError, match="No such file"):
        first_keys(_settings(tmp_path / "missing"))


def test_a_reload_with_the_name_of_a_listed_key() -> None:
    """It is rejected: two keys would have one name."""
    settings = from_replicas("llama", ["http://127.0.0.1:9"], others={"keys": [{"name": "a", "key": "s"}]})
    check_names(settings, {"b": 1})
    with pytest.raises(ReloadFailed, match="key a is also in the list"):
        check_names(settings, {"a": 1})


def test_unchanged_keys_stay_the_same_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of some keys replaces these in place, and the list that was read is used up."""
    file, read = tmp_path / "keys.jsonl", list[Parted[str, ListedKey]]()

    def reading(path: Path, settings: Settings) -> Parted[str, ListedKey]:
        read.append(read_keys(path, settings))
        return read[-1]

    monkeypatch.setattr(key_watch, "read_keys", reading)
    _write(file, "a", "b", "c")

    async def main() -> None:
        watched = await _begun(file)
        keys, before = watched.watch.keys, dict(watched.watch.keys.items())
        await asyncio.to_thread(_write, file, "a", "d")
        assert await watched.watch._follow() is None
        assert watched.watch.keys is keys
        assert (sorted(keys), keys.get("a") is before["a"], len(read[-1])) == (["a", "d"], True, 0)

    run_real(main())


def test_no_step_copies_all_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dict that grows is copied while the interpreter's lock is held: one of all keys would hold the loop."""
    file, count, owners = tmp_path / "keys.jsonl", 5_000, list[int]()
    _write(file, *(f"key-{number}" for number in range(count)))
    take = key_list._Reader._take

    def taking(reader: key_list._Reader, line: bytes) -> str | None:
        fault = take(reader, line)
        owners[:] = [_longest(reader.owners)]
        return fault

    monkeypatch.setattr(key_list._Reader, "_take", taking)
    keys, table = read_keys(file, _settings(file)), ListedKeys()
    list(table.apply(difference(Parted(), keys)))
    longest = [*owners, *map(_longest, (keys, table.by_name, table.names))]
    assert len(table.by_name) == len(table.names) == count
    assert all(count / 61 <= each <= 2 * count / 61 for each in longest), longest


def _longest(mapping: object) -> int:
    """Return the number of items of the largest dict in a mapping."""
    return max(len(each) for each in (mapping, *getattr(mapping, "parts", ())) if isinstance(each, dict))
