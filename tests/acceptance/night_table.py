"""Fifteen things that go wrong at night: a gateway, its traffic, the trouble, and the files that the runbook changes.

nights.py plays them. The commands are in docs/runbook.md. Rates are requests per second.
"""

import contextlib
import http.client
import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from redis_server import RedisServer

Settings = dict[str, Any]

_USUAL: Final[Mapping[str, object]] = {"ttft": "lognormal_median:100ms,0.2", "gap": "3ms", "tokens": 15}
_OPENAI: Final[Mapping[str, object]] = {**_USUAL, "provider": "openai"}
_LIMITED: Final[Mapping[str, object]] = {**_OPENAI, "requests_per_min": 60, "tokens_per_min": 100_000}
_PROVIDER: Final[Mapping[str, object]] = {**_OPENAI, "ttft": "lognormal_median:200ms,0.3"}
_LONG: Final[Mapping[str, object]] = {**_USUAL, "ttft": "300ms"}
SECRETS: Final = {"team-a": "secret-of-team-a", "team-b": "secret-of-team-b"}


@dataclass(slots=True)
class Home:
    """A running night.

    Attributes:
        folder: folder of its files.
        urls: base URLs of its replicas by name.
        rates: requests per second by key.
        secrets: secrets that the owners of the keys send.
        beside: requests per second that bypass the gateway, by replica.
        stolen: requests per second of a thief, by secret.
        pid: process id of the gateway.
        redis: server of shared limits, for a night with one.
    """

    folder: Path
    urls: Mapping[str, str]
    rates: dict[str, float]
    secrets: dict[str, str] = field(default_factory=lambda: dict(SECRETS))
    beside: dict[str, float] = field(default_factory=dict)
    stolen: dict[str, float] = field(default_factory=dict)
    pid: int = 0
    redis: RedisServer | None = None

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.folder / "gateway.yaml"

    def edit(self, change: Callable[[Settings], object]) -> None:
        """Change the configuration file."""
        settings = json.loads(self.config.read_text(encoding="utf-8"))
        change(settings)
        self.config.write_text(json.dumps(settings), encoding="utf-8")

    def limit(self, key: str, **limits: int) -> None:
        """Limit a key in the configuration file."""
        self.edit(lambda settings: next(row for row in settings["keys"] if row["name"] == key).update(limits))

    def profiles(self, names: str, **changes: object) -> None:
        """Change the behaviour of replicas, each with a name of one letter."""
        for name in names:
            connection = http.client.HTTPConnection("127.0.0.1", urlsplit(self.urls[name]).port, timeout=30)
            with contextlib.closing(connection):
                connection.request("POST", "/sim/profile", json.dumps(changes))
                response = connection.getresponse()
                assert response.status == 200, response.read()


@dataclass(frozen=True, slots=True)
class Night:
    """One thing that goes wrong.

    Attributes:
        section: heading in the runbook.
        title: name of the night; empty for the heading.
        verdict: regular expression of the first sentence of the verdict.
        redis: True if it has a server of shared limits.
        alert: alert that must fire.
        sign: regular expression of a line of the log, or of standard error.
        seen: regular expression of the output of the runbook's commands to look.
        replicas: profiles of the replicas by name.
        settings: configuration, given the rows of the replicas by name and the folder.
        rates: requests per second by key before the trouble.
        trouble: begins it.
        edit: change of files that the section names, before its commands.
        names: values of the runbook's variables.
        reloads: True if the trouble includes a reload.
        history: True if the alert compares with the time before.
        small: True if the folder is a disk of a few megabytes.
    """

    section: str
    alert: str
    sign: str
    seen: str
    replicas: Mapping[str, Mapping[str, object]]
    settings: Callable[[Mapping[str, Settings], Path], Settings]
    rates: Mapping[str, float]
    trouble: Callable[[Home], object]
    edit: Callable[[Home], object] = lambda _: None
    names: Mapping[str, str] = field(default_factory=dict)
    reloads: bool = False
    history: bool = False
    small: bool = False
    title: str = ""
    verdict: str = ""
    redis: bool = False

    @property
    def name(self) -> str:
        """Name of the night."""
        return self.title or self.section


def _pool(rows: Mapping[str, Settings], _folder: Path) -> Settings:
    return {"models": [{"name": "m", "replicas": list(rows.values())}]}


def _openai(rows: Mapping[str, Settings], folder: Path) -> Settings:
    replicas = [{**row, "kind": "openai", "api_key": "k", "quota": f"q-{name}"} for name, row in rows.items()]
    return _pool(dict(zip(rows, replicas, strict=True)), folder)


def _one_provider(rows: Mapping[str, Settings], _folder: Path) -> Settings:
    provider = {**rows["a"], "kind": "openai", "api_key": "k", "quota": "shared"}
    return {"models": [{"name": "m", "replicas": [provider, rows["b"]]}]}


def _tight(rows: Mapping[str, Settings], folder: Path) -> Settings:
    return {**_openai(rows, folder), "hedge": {"policy": "static", "delay": "400ms", "budget": "5%"}}


def _with_fallback(rows: Mapping[str, Settings], _folder: Path) -> Settings:
    first = [rows["a"], rows["b"]]
    return {"models": [{"name": "m", "replicas": first, "fallbacks": [{"replicas": [rows["c"]]}]}]}


def _learning(rows: Mapping[str, Settings], folder: Path) -> Settings:
    return {**_pool(rows, folder), "learned_file": str(folder / "learned.json")}


def _key_file(rows: Mapping[str, Settings], folder: Path) -> Settings:
    (folder / "team-a").write_text(SECRETS["team-a"], encoding="utf-8")
    return {**_pool(rows, folder), "keys": [{"name": "team-a", "key_file": str(folder / "team-a")}]}


def _queued(rows: Mapping[str, Settings], _folder: Path) -> Settings:
    model = {"name": "m", "replicas": list(rows.values()), "concurrency": 2, "queue": {"max": 4, "timeout": "5s"}}
    return {"models": [model]}


def _workers(rows: Mapping[str, Settings], folder: Path) -> Settings:
    return {**_pool(rows, folder), "workers": 2}


def _shared(rows: Mapping[str, Settings], folder: Path) -> Settings:
    [socket] = (folder / "redis").glob("*.sock")
    return {**_pool(rows, folder), "share": {"url": f"unix://{socket}"}}


def _children(home: Home) -> list[int]:
    """Return the ids of the gateway's processes, in the order of their start: the supervisor, then the workers."""
    listed = Path(f"/proc/{home.pid}/task/{home.pid}/children").read_text(encoding="ascii")
    return sorted(map(int, listed.split()))


def _kill(home: Home, number: int) -> None:
    os.kill(_children(home)[number], signal.SIGKILL)


def _lose_redis(home: Home) -> None:
    assert home.redis is not None
    home.redis.kill()


def _start_redis(home: Home) -> None:
    assert home.redis is not None
    home.redis.start()


def _fill(home: Home) -> None:
    """Write a file until the disk is full."""
    with contextlib.suppress(OSError), (home.folder / "old.log").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def _break_the_file(home: Home) -> None:
    """Write a configuration with a mistake, and reload as a colleague would."""
    (home.folder / "before.yaml").write_bytes(home.config.read_bytes())
    home.edit(lambda settings: settings["models"][0].update({"concurency": 8}))


def _put_back(home: Home) -> None:
    home.config.write_bytes((home.folder / "before.yaml").read_bytes())


def _new_secret(home: Home) -> None:
    (home.folder / "team-a").write_text("another-secret", encoding="utf-8")
    home.secrets["team-a"] = "another-secret"


NIGHTS: Final = (
    Night(
        "A replica is dead",
        "TtftReplicaDown",
        r'"breaker_changed".*"replica":"a","state":"open"',
        r'breaker_state\{.*replica="a"\} [12]',
        dict.fromkeys("abc", _USUAL),
        _pool,
        {"team-a": 4.0},
        lambda home: home.profiles("a", faults=["reset"]),
        verdict=r"^replica a of m fails and gets no requests",
    ),
    Night(
        "A replica is slow",
        "TtftReplicaSlow",
        r'"replica":"a","role":"(primary|backup)".*"outcome":"lost"',
        r"replica a of m (is|answers)",
        dict.fromkeys("abc", _USUAL),
        _pool,
        {"team-a": 4.0},
        lambda home: home.profiles("a", ttft="4s"),
        verdict=r"^replica a of m (is|answers)",
    ),
    Night(
        "Providers answer 429",
        "TtftCallersGet429",
        r'"status":429',
        r'quota_left_share\{quota="q-a",resource="requests"\} 0\.0',
        dict.fromkeys("ab", _LIMITED),
        _openai,
        {"team-a": 0.7, "team-b": 0.3},
        lambda home: home.rates.update({"team-b": 6.0}),
        lambda home: home.limit("team-b", requests_per_min=20),
        {"KEY": "team-b"},
        verdict=r"get a 429|is left|used up",
    ),
    Night(
        "Others use the quota",
        "TtftQuotaUsedByOthers",
        r'"outcome":"rate_limited"',
        r'"others_s":[1-9]',
        {"a": {**_OPENAI, "requests_per_min": 240, "tokens_per_min": 100_000}, "b": _USUAL},
        _one_provider,
        {"team-a": 2.0},
        lambda home: home.beside.update({"a": 5.0}),
        names={"QUOTA": "shared"},
        verdict=r"^other clients use \d+% of the requests of quota shared",
    ),
    Night(
        "The hedge budget is spent",
        "TtftHedgeBudgetSpent",
        r'"denials":\[[^]]*"budget"',
        r'hedges_denied_total\{.*reason="budget"',
        dict.fromkeys("ab", _USUAL),
        _tight,
        {"team-a": 4.0},
        lambda home: home.profiles("ab", stall="25%:2s"),
        lambda home: home.edit(lambda settings: settings["hedge"].update(budget="50%")),
        verdict=r"because the budget is spent",
    ),
    Night(
        "All replicas are slow",
        "TtftFirstTokensLate",
        r'"ttft_ms":[67]\d\d\d',
        r"ttft_gateway_in_flight",
        dict.fromkeys("abc", _USUAL),
        _with_fallback,
        {"team-a": 1.5},
        lambda home: home.profiles("ab", ttft="6500ms"),
        names={"REPLICA": "a b"},
        verdict=r"first tokens of m take more than 5 s",
    ),
    Night(
        "A reload was bad",
        "TtftReloadRejected",
        r'"config_reloaded".*"error":".*concurency',
        r"concurency",
        dict.fromkeys("ab", _USUAL),
        _pool,
        {"team-a": 1.0},
        _break_the_file,
        _put_back,
        reloads=True,
        verdict=r"the configuration was rejected .*concurency",
    ),
    Night(
        "The disk is full",
        "TtftLogLinesLost",
        r"standard output is not writable",
        r"100%",
        dict.fromkeys("ab", _USUAL),
        _learning,
        {"team-a": 3.0},
        _fill,
        lambda home: (home.folder / "old.log").unlink(),
        small=True,
        verdict=r"log lines were lost",
    ),
    Night(
        "A key has leaked",
        "TtftKeyUnusual",
        r'"key":"team-a"',
        r'"key":"team-a"',
        dict.fromkeys("ab", _USUAL),
        _key_file,
        {"team-a": 0.4},
        lambda home: home.stolen.update({SECRETS["team-a"]: 5.0}),
        _new_secret,
        history=True,
        verdict=r"^key team-a sends",
    ),
    Night(
        "The gateway is overloaded",
        "TtftGatewayOverloaded",
        r'"request_rejected".*"code":"overloaded"',
        r'key="team-b",status_class="5xx"',
        dict.fromkeys("ab", _LONG),
        _queued,
        {"team-a": 1.0, "team-b": 1.0},
        lambda home: home.rates.update({"team-b": 14.0}),
        lambda home: home.limit("team-b", concurrency=1),
        {"KEY": "team-b"},
        verdict=r"a queue or the memory for bodies is full .*key team-b",
    ),
    Night(
        "A replica is slow",
        "TtftReplicaSlow",
        r'"replica":"a","role":"(primary|backup)".*"outcome":"lost"',
        r"replica a of m (is|answers)",
        dict.fromkeys("abc", _PROVIDER),
        _openai,
        {"team-a": 1.6},
        lambda home: home.profiles("a", ttft="3s"),
        title="A provider's replica is 15 times slower",
        verdict=r"^replica a of m is .*x slower than usual",
    ),
    Night(
        "A replica rejects the gateway",
        "TtftReplicaMisconfigured",
        r'"outcome":"misconfigured"',
        r"401",
        dict.fromkeys("abc", _USUAL),
        _pool,
        {"team-a": 2.0},
        lambda home: home.profiles("a", faults=["401"]),
        lambda home: home.profiles("a", faults=[]),
        verdict=r"^replica a of m rejects the key",
    ),
    Night(
        "The server of shared limits is away",
        "TtftShareAway",
        r'"share_away"',
        r'"up":false',
        dict.fromkeys("ab", _USUAL),
        _shared,
        {"team-a": 2.0},
        _lose_redis,
        _start_redis,
        verdict=r"^the server of shared limits does not answer",
        redis=True,
    ),
    Night(
        "A part of the gateway fails",
        "TtftWorkersRestart",
        r'"worker_changed".*"ready":false',
        r'"restarts":1',
        dict.fromkeys("ab", _USUAL),
        _workers,
        {"team-a": 2.0},
        lambda home: _kill(home, 1),
        title="A worker is killed",
        verdict=r"worker 1 at .*SIGKILL",
    ),
    Night(
        "A part of the gateway fails",
        "TtftWorkersRestart",
        r"the supervisor was ended by SIGKILL and is replaced",
        r'"ready":true',
        dict.fromkeys("ab", _USUAL),
        _workers,
        {"team-a": 2.0},
        lambda home: _kill(home, 0),
        title="The supervisor is killed",
        verdict=r"the supervisor at ",
    ),
)
