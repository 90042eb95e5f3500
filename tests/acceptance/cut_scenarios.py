"""Streams that break in front of real sockets, as measurements: the tests make them small, scripts/acceptance in full.

Two replicas say the same and cut it into events differently; whichever is asked first breaks off, once. Requests that
do not break stand between those that do: they earn what retries may cost. Units: seconds.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import openai

from gateway_fixture import Site, serving
from race_scenarios import Settings
from raw_http import answer, asking
from recovering import WEATHER, Read, read
from sdk_clients import HELLO, async_client

TOKENS = 20
FORMS: Mapping[str, Mapping[str, object]] = {
    "text": {},
    "tools": {"tools": [WEATHER], "tool_choice": "required"},
    "choices": {"n": 2},
    "tools twice": {"tools": [WEATHER], "tool_choice": "required", "n": 2},
}
_BREAKS = ("cut_rst", "cut_fin", "cut_chunked", "cut_mid", "short", "error_frame", "error_event", "finish_error")
_STALL = "stall:{},30s"
_STALLS = 0.02  # of the breaks; each takes the time that counts as a stall
_SDK_SHARE = 0.2  # of the answers are read by the SDK, which is slow
_BETWEEN = 4  # requests that do not break, for each that does: retries are a fifth of the requests at most
_PROFILE: Settings = {"ttft": "1ms", "gap": "100us", "tokens": TOKENS}
_AUTO: Settings = {"recovery": "auto"}
_ALONE: Settings = {"policy": "off"}
_DIFFERENT_AT = 6  # tokens: that many are never the same by chance


@dataclass
class Cuts:
    """What clients read of streams that broke.

    Attributes:
        equal: answers that equal the uncut one, content and arguments, and are one valid stream.
        by_sdk: answers that the SDK put together.
        unequal: what was wrong with others.
        honest: errors behind the beginning of one answer.
        recovered: recoveries the gateway has told of, by kind and result; empty where it is a process of its own.
    """

    equal: int = 0
    by_sdk: int = 0
    unequal: list[str] = field(default_factory=list)
    honest: int = 0
    recovered: dict[str, int] = field(default_factory=dict)


async def cuts(
    count: int, *, kind: str = "compatible", seed: int = 1, stall_s: float = 0.2, process: bool = False
) -> Cuts:
    """So many streams that break at random, in front of replicas that say the same.

    Args:
        count: of streams.
        kind: of the replicas; "simulated" ones continue a text, others are asked again.
        seed: of what breaks where.
        stall_s: what counts as a stall.
        process: where the gateway runs.
    """
    rng, result = random.Random(seed), Cuts()
    profiles: dict[str, Settings] = {"a": _PROFILE, "b": {**_PROFILE, "per_event": 3}}
    stall = {"stall": f"{1000 * stall_s:g}ms"}
    async with (
        serving(profiles, alike=True, kind=kind, model=_AUTO, process=process, timeouts=stall, hedge=_ALONE) as site,
        async_client(site.url) as client,
    ):
        whole = {name: await _read(site, form) for name, form in FORMS.items()}
        arguments = {name: await _assembled(client, form) for name, form in FORMS.items()}
        for number in range(count):
            name = list(FORMS)[number % len(FORMS)]
            for _ in range(_BETWEEN):
                await _read(site, {"max_tokens": 1})
            fault = _STALL if rng.random() < _STALLS else rng.choice(_BREAKS) + ":{}"
            break_once(
                site, fault.format(rng.randrange(1, rng.choice((7, TOKENS))))
            )  # 7 events are a whole answer, too
            if rng.random() < _SDK_SHARE:
                got = await _assembled(client, FORMS[name])
                fine = got == arguments[name]
                result.by_sdk += fine
                wrong = str(got)
            else:
                told = await _read(site, FORMS[name])
                fine = told.valid and told.said == whole[name].said and told.usages[0]["completion_tokens"] > 0
                wrong = str(told)
            result.equal += fine
            if not fine:
                result.unequal.append(f"{name}, {fault}: {wrong}")
            assert not _breaking(site), "nothing has broken"
        _count(site, result)
    return result


async def differing(count: int, *, seed: int = 1, process: bool = False) -> Cuts:
    """The same in front of replicas that say different things: each client must get an error, and one beginning."""
    rng, result = random.Random(seed), Cuts()
    profiles = dict.fromkeys("ab", _PROFILE)
    async with serving(profiles, kind="compatible", model=_AUTO, process=process, hedge=_ALONE) as site:
        texts: dict[str, str] = {}
        while len(texts) < len(site.replicas):
            async with answer(site.port, asking(temperature=0)) as got:
                texts[got.headers["x-ttft-replica"]] = read(await got.body()).texts["0.content"]
        for _ in range(count):
            for _ in range(_BETWEEN):
                await _read(site, {"max_tokens": 1})
            break_once(site, f"{rng.choice(_BREAKS)}:{rng.randrange(_DIFFERENT_AT, TOKENS)}")
            async with answer(site.port, asking(temperature=0)) as got:
                told = read(await got.body())
                own = texts[got.headers["x-ttft-replica"]]
            text = told.texts["0.content"]
            fine = told.error is not None and not told.dones and not told.finishes and own.startswith(text)
            result.honest += fine
            if not fine:
                result.unequal.append(str(told))
        _count(site, result)
    return result


def break_once(site: Site, fault: str) -> None:
    """Whichever replica is asked next shows this fault, and no other."""
    replicas = [server.replica for server in site.replicas.values()]
    for server in site.replicas.values():
        server.configure(faults=[f"{fault} once"])
    for replica in replicas:
        replica._rule_uses_left = replicas[0]._rule_uses_left


def _breaking(site: Site) -> bool:
    """The fault was not shown yet."""
    return any(server.replica._rule_uses_left[0] for server in site.replicas.values())


async def _read(site: Site, form: Mapping[str, object]) -> Read:
    """One answer, as its bytes say it."""
    async with answer(site.port, asking(temperature=0, stream_options={"include_usage": True}, **form)) as got:
        return read(await got.body())


async def _assembled(client: openai.AsyncOpenAI, form: Mapping[str, object]) -> list[tuple[object, ...]]:
    """One answer, as the SDK puts it together."""
    said: list[tuple[object, ...]] = []
    async with client.chat.completions.stream(model="m", messages=HELLO, temperature=0, extra_body=form) as stream:
        completion = await stream.get_final_completion()
    for choice in completion.choices:
        calls = choice.message.tool_calls or []
        called = tuple((call.id, call.function.name, call.function.arguments) for call in calls)
        said.append((choice.index, choice.finish_reason, choice.message.content, called))
    return said


def _count(site: Site, result: Cuts) -> None:
    for event in site.events:
        for recovery in getattr(event, "recoveries", ()):
            key = f"{recovery.kind.value} {recovery.result.value}"
            result.recovered[key] = result.recovered.get(key, 0) + 1
