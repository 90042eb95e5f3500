"""Many streams under every kind of fault at once: each text follows from its request, so every wrong byte is found.

Each kind of fault has a model with three replicas, two of which give the same answer. Every request has a prompt and a
length of its own, and its client computes the answers that the replicas can give. Hedges race, some clients disconnect
in the middle, and replicas write their bytes in odd ways. Units: seconds.
"""

import asyncio
import contextlib
import json
import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from providers.base import Api
from providers.simulated.faults import parse_faults
from providers.simulated.profile import parse_profile
from providers.simulated.replica import RawRequest, SimulatedReplica
from providers.simulated.server import SimulatedServer
from race_scenarios import spread
from raw_http import Cut, answer, asking
from recovering import WEATHER, Read, read
from served import gateway

WRONG = ("mixed", "lost", "doubled", "silently cut")
_EVENTS = (0, 1, 5, 11)  # after which a stream breaks
_SHARE = "9%"  # of the attempts, for each of them
_BEFORE = ("500", "503", "json_error", "empty", "done", "reset", "silence", "headers_silence")
_BREAKS = ("cut_rst", "cut_fin", "cut_chunked", "cut_mid", "short", "error_frame", "error_event", "finish_error")
_REFUSED = ("content_policy", "refusal", "content_filter:4")
FAULTS: Mapping[str, Sequence[str]] = {
    "429": ["429:1s 10%"],
    **{fault: [f"{fault} 35%"] for fault in (*_BEFORE, *_REFUSED)},
    **{fault: [f"{fault}:{events} {_SHARE}" for events in _EVENTS] for fault in _BREAKS},
    "malformed": [f"malformed:{events}+malformed:{events + 1} {_SHARE}" for events in _EVENTS],
    "stall": [f"stall:{events},30s {_SHARE}" for events in _EVENTS],
}
# After the fault in the order of edits: pieces of events are no events, lengths come last.
_ODD_BYTES = ["pings 5%", "crlf 10%", "coalesce:4 10%", "split:7 20%", "chunk_extensions 10%", "length 5%", "close 5%"]
_SEEDS = (0, 0, 1)  # of the replicas' texts
_PROFILE: Mapping[str, object] = {"ttft": "uniform:2ms,40ms", "gap": "1ms", "headers": "at_once"}
_TIMEOUTS = {
    "ttft_failover": "500ms",
    "ttft_max": "2s",
    "stall": "1s",
    "stall_tool_call": "1s",
    "retry_after_max": "1s",
}
_HEDGE = {"policy": "static", "delay": "20ms", "hedge_delay_min": "1ms", "budget": "100%"}
_AT_ONCE = 60
_LEAVE = 0.02  # share of additional clients that disconnect in the middle
_ANSWER_S_MAX = 30.0
_WORDS = ("river", "stone", "cloud", "lamp", "seven", "north", "glass", "bread", "winter", "copper")
_FORMS: Sequence[Mapping[str, object]] = ({}, {"tools": [WEATHER], "tool_choice": "required"}, {"n": 2})


async def faulty(count: int, recovery: str, *, seed: int = 1) -> dict[str, Counter[str]]:
    """Read this many streams; return the number of each result by kind of fault.

    Args:
        count: number of streams that are read to their end.
        recovery: mode of recovery.
        seed: seed of requests.
    """
    rng, results = random.Random(seed), {kind: Counter[str]() for kind in FAULTS}
    answers = [SimulatedReplica(parse_profile(_PROFILE), random.Random(1), each) for each in dict.fromkeys(_SEEDS)]
    async with contextlib.AsyncExitStack() as opened:
        models: list[dict[str, object]] = []
        for number, (kind, rules) in enumerate(FAULTS.items()):
            rows = []
            for replica, text_seed in enumerate(_SEEDS):
                server = SimulatedServer(parse_profile({**_PROFILE, "faults": [*rules, *_ODD_BYTES]}), text_seed)
                await server.start()
                opened.push_async_callback(server.close)
                server.replica._rng.seed(f"{seed} {number} {replica}")  # the texts stay those of their seed
                rows.append({"name": f"{number}-{replica}", "kind": "vllm", "base_url": server.url})
            models.append({"name": kind, "replicas": rows, "recovery": recovery})
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        config = {"models": models, "hedge": _HEDGE, "timeouts": _TIMEOUTS}
        port = urlsplit(opened.enter_context(gateway(config, folder)).url).port or 0

        async def one(number: int) -> None:
            kind = list(FAULTS)[number % len(FAULTS)]
            request = _request(kind, number, rng)
            if rng.random() < _LEAVE:
                await _leave(port, request)
            results[kind][await _result(port, request, answers)] += 1

        await spread(count, _AT_ONCE, one)
    return results


def _request(kind: str, number: int, rng: random.Random) -> dict[str, object]:
    """Return the body of a request whose answer no other request has."""
    prompt = f"{number} {' '.join(rng.choices(_WORDS, k=6))}"
    form = _FORMS[number // len(FAULTS) % len(_FORMS)]
    body = {"model": kind, "messages": [{"role": "user", "content": prompt}], "max_tokens": rng.randrange(8, 25)}
    return {**body, "stream": True, "temperature": 0, "stream_options": {"include_usage": True}, **form}


async def _leave(port: int, request: Mapping[str, object]) -> None:
    """Send a request and disconnect after the first bytes of its answer."""
    with contextlib.suppress(Cut):
        async with asyncio.timeout(_ANSWER_S_MAX), answer(port, asking(**request)) as got:
            await anext(got.pieces(), b"")


async def _result(port: int, request: Mapping[str, object], answers: Sequence[SimulatedReplica]) -> str:
    """Read one stream and judge it."""
    body, status, ended = bytearray(), 0, True
    try:
        async with asyncio.timeout(_ANSWER_S_MAX), answer(port, asking(**request)) as got:
            status = got.status
            async with contextlib.aclosing(got.pieces()) as pieces:
                async for piece in pieces:
                    body += piece
    except (Cut, TimeoutError):
        ended = False
    if not status:
        return "lost"
    if status != 200:
        return f"error {status}" if ended and "error" in json.loads(body) else "lost"
    fault = str(request["model"])
    right = [_answer(replica, request) for replica in answers]
    refused = [_answer(replica, request, fault) for replica in answers] if fault in _REFUSED else []
    try:
        return judged(read(bytes(body)), right, refused, ended=ended)
    except (ValueError, AssertionError):  # an event that is not JSON, or one after the last
        return "mixed"


def _answer(replica: SimulatedReplica, request: Mapping[str, object], fault: str = "") -> Read:
    """Return what a client reads of a replica's answer, with this fault if one is named."""
    raw = RawRequest(Api.CHAT, json.dumps(request).encode(), streamed=True)
    script = replica.script(raw, parse_faults(fault) if fault else (), 0.0, 0.0)
    return read(b"".join(frame.raw for frame in (*script.prelude, *(step.frame for step in script.steps))))


def judged(got: Read, right: Sequence[Read], refused: Sequence[Read], *, ended: bool) -> str:
    """Return the result of one stream: "whole", "refused", "error", or one of WRONG.

    Args:
        got: the client's view.
        right: the answers that replicas give without a fault.
        refused: the refusals that they give.
        ended: True if the body ended as HTTP requires.
    """
    finishes = [finish for each in got.finishes.values() for finish in each]
    heads = {head for head in got.heads if any(head)}
    if got.dones > 1 or len(finishes) > len(got.finishes) or any(count > 1 for count in got.roles.values()):
        return "doubled"
    if len(heads) > 1:
        return "mixed"
    if not any(_begins(got.texts, each.texts) for each in (*right, *refused)):
        words, whole = _words(got), [_words(each) for each in right]
        if not any(set(words) <= set(each) for each in whole):
            return "mixed"
        return "lost" if any(words <= each for each in whole) else "doubled"
    if got.error is not None:
        return "error" if ended and not got.dones else "silently cut"
    for result, answers in (("whole", right), ("refused", refused)):
        if ended and any(got.texts == each.texts and got.finishes == each.finishes for each in answers):
            return result
    return "silently cut" if ended else "lost"


def _begins(got: Mapping[str, str], right: Mapping[str, str]) -> bool:
    return all(right.get(place, "").startswith(text) for place, text in got.items())


def _words(answer: Read) -> Counter[str]:
    return Counter(word for text in answer.texts.values() for word in text.split())
