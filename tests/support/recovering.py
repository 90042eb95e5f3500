"""Streams that break in front of simulated replicas, in virtual time: what the client of a real race reads of them.

The client takes events apart itself, by the rules of the OpenAI SDK: one text by choice, field and tool index.
"""

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from defaults import default_hedging, default_timeouts
from gateway.events import Event, RequestEnded
from gateway.race.context import Caller, Model, RecoveryMode
from gateway.race.deadlines import Timeouts
from gateway.race.race import Race
from gateway.simulated.profile import parse_profile
from gateway.simulated.replica import SimulatedReplica
from providers.protocols import RECOVERERS
from running import run_virtual
from scripted import Hearing, RecordingClient
from simulated_endpoint import SimulatedEndpoint
from ttft_gateway.apis.base import Api
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.parameters import HedgeParameters
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.requests.request import parse
from ttft_gateway.routing.replicas import Replica

OFF = default_hedging(policy=Policy.OFF)
Profile = Mapping[str, object]

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,  # else the SDK's own stream helper does not take it
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"enum": ['degrees "Celsius"', "Kelvin"]},
                "places": {"type": "array", "items": {"type": "string"}},
            },
        },
    },
}


@dataclass
class Read:
    """One answer as a client puts it together.

    Attributes:
        texts: by choice, field and tool index.
        finishes: finish_reasons by choice, in order.
        roles: how often a role was told, by choice.
        heads: distinct ids, `created`, models and fingerprints.
        usages: token counts, in order.
        dones: how often the end was told.
        error: the error that ended it.
    """

    texts: dict[str, str] = field(default_factory=dict)
    finishes: dict[int, list[str]] = field(default_factory=dict)
    roles: dict[int, int] = field(default_factory=dict)
    heads: set[tuple[object, ...]] = field(default_factory=set)
    usages: list[dict[str, Any]] = field(default_factory=list)
    dones: int = 0
    error: str | None = None

    @property
    def said(self) -> tuple[object, ...]:
        """What must be equal in equal answers."""
        return self.texts, self.finishes, self.roles, self.dones, self.error

    @property
    def valid(self) -> bool:
        """It is one stream."""
        return (
            len(self.heads) == 1
            and self.dones == 1
            and all(len(told) == 1 for told in self.finishes.values())
            and all(told == 1 for told in self.roles.values())
        )


def read(body: bytes) -> Read:
    """Take a stream's events apart."""
    got = Read()
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        event = block.lstrip(b"\n")  # a blank line without an event means nothing
        if not event.startswith(b"data: "):
            continue
        if event == b"data: [DONE]":
            got.dones += 1
            continue
        chunk = json.loads(event[6:])
        if "error" in chunk:
            got.error = chunk["error"]["code"] or chunk["error"]["type"]
            continue
        assert not got.dones
        got.heads.add(tuple(chunk.get(key) for key in ("id", "created", "model", "system_fingerprint")))
        if chunk.get("usage"):
            got.usages.append(chunk["usage"])
        for choice in chunk["choices"]:
            _choice(got, choice)
    return got


def _choice(got: Read, choice: Mapping[str, Any]) -> None:
    index = choice["index"]
    delta = choice.get("delta", {})
    got.roles[index] = got.roles.get(index, 0) + ("role" in delta)
    for key, value in (*delta.items(), ("text", choice.get("text"))):
        if isinstance(value, str) and key != "role":
            _add(got, f"{index}.{key}", value)
    for piece in delta.get("tool_calls") or ():
        place = f"{index}.tool.{piece.get('index')}"
        _add(got, f"{place}.id", piece.get("id") or "")
        for key, value in piece.get("function", {}).items():
            _add(got, f"{place}.{key}", value)
    for key, tokens in (choice.get("logprobs") or {}).items():
        if tokens:
            _add(got, f"{index}.logprobs.{key}", json.dumps(tokens)[1:-1] + ", ")
    if choice.get("finish_reason"):
        got.finishes.setdefault(index, []).append(choice["finish_reason"])


def _add(got: Read, place: str, text: str) -> None:
    if text:
        got.texts[place] = got.texts.get(place, "") + text


@dataclass
class Told:
    """What one request came to."""

    read: Read
    client: RecordingClient
    report: RequestEnded
    events: list[Event]
    asked: list[int]


class _Client(RecordingClient):
    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        assert not self.got, "an answer began twice"
        super().begin(headers)

    def fail(self, error: Any) -> None:
        self.got += error.event()
        super().fail(error)


def ask(**fields: object) -> dict[str, object]:
    """A streamed chat completion that asks for the same answer each time, with these fields besides or instead."""
    return {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "temperature": 0,
        "stream_options": {"include_usage": True},
        **fields,
    }


def _simulated(
    profiles: Sequence[Profile], seeds: Sequence[int] | None, draws: Sequence[int]
) -> list[SimulatedReplica]:
    return [
        SimulatedReplica(
            parse_profile(profile),
            random.Random(draws[number] if draws else 7),
            seeds[number] if seeds else 0,
            f"r{number}",
        )
        for number, profile in enumerate(profiles)
    ]


def run(
    request: Mapping[str, object],
    *profiles: Profile,
    mode: RecoveryMode = RecoveryMode.AUTO,
    prefills: Sequence[bool] | bool = False,
    seeds: Sequence[int] | None = None,
    api: Api = Api.CHAT,
    timeouts: Timeouts | None = None,
    hedge: HedgeParameters = OFF,
    during: Callable[[Race, RecordingClient], None] | None = None,
    fallback: Profile | None = None,
    sides: Sequence[str] = (),
    deadline_s: float | None = None,
    alike: bool = True,
    draws: Sequence[int] = (),
) -> Told:
    """Send one request to replicas, the first choice first.

    Args:
        request: its body.
        profiles: of the replicas.
        mode: of recovery.
        prefills: which replicas are thought to continue answers.
        seeds: of their texts; the same for all unless told.
        api: which is called.
        timeouts: of the model.
        hedge: settings of the pool.
        during: called right after the start.
        fallback: a replica in a pool of its own.
        sides: their boundaries.
        deadline_s: deadline of the caller.
        alike: whether the fallback is declared to answer like the other replicas.
        draws: seeds of the replicas' sampled texts; the same for all unless given.
    """

    async def main() -> Told:
        loop = asyncio.get_running_loop()
        simulated = _simulated((*profiles, *((fallback,) if fallback else ())), seeds, draws)
        able = [prefills] * len(simulated) if isinstance(prefills, bool) else prefills
        replicas = [
            Replica(
                f"r{number}",
                SimulatedEndpoint(each),
                boundary=sides[number] if sides else None,
                prefills=CONTINUES if number < len(able) and able[number] else frozenset(),
                answers_as="" if alike or number < len(profiles) else "another model",
            )
            for number, each in enumerate(simulated)
        ]
        pools = [Pool("m", replicas[: len(profiles)], hedge, has_fallback=fallback is not None)]
        if fallback:
            pools.append(Pool("m/fallback-1", replicas[len(profiles) :], hedge))
        heard = Hearing(loop)
        inbound = parse(api, json.dumps(request).encode(), [], NumberLimits(16, 100_000), frozenset())
        client = _Client(streaming=True)
        model = Model("m", pools, timeouts or default_timeouts(), recovery=mode, recoverers=RECOVERERS)
        facts = RequestFacts(prompt_tokens=10, hedge_off=inbound.hedge_off, deadline_s=deadline_s)
        caller = Caller("req_1", "key", loop.time())
        race = Race(model, inbound.call, facts, client, caller, heard.runtime)
        race.start()
        if during is not None:
            during(race, client)
        report, _ = await heard.over()
        assert client.ends <= 1
        assert all(replica.in_flight == 0 for replica in replicas)
        return Told(read(client.got), client, report, heard.events, [each._requests for each in simulated])

    return run_virtual(main())


CONTINUES = frozenset(product(Api, (False, True)))
"""Kinds of answers that a simulated replica continues."""
