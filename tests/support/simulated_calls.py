"""Builders for tests of simulated replicas: requests, scripts, and the contents of scripts."""

import json
import random
from typing import Any

from gateway.simulated.faults import parse_faults
from gateway.simulated.profile import parse_profile
from gateway.simulated.replica import RawRequest, SimulatedReplica
from gateway.simulated.script import Script
from ttft_gateway.apis.base import Api, FrameKind

HELLO = [{"role": "user", "content": "hello"}]


def body_of(**fields: Any) -> bytes:
    """A request at temperature 0, which makes its text repeatable."""
    prompt = {} if "prompt" in fields else {"messages": HELLO}
    return json.dumps({"model": "m", "temperature": 0, **prompt, **fields}).encode()


def replica_of(seed: int = 1, name: str = "a", **profile: object) -> SimulatedReplica:
    """A replica with these keys in its profile."""
    return SimulatedReplica(parse_profile(profile), random.Random(seed), seed, name)


def play(replica: SimulatedReplica, now_s: float = 0.0, api: Api = Api.CHAT, fault: str = "", **fields: Any) -> Script:
    """Return the script of a request, which is streamed by default."""
    injected = parse_faults(fault) if fault else ()
    return replica.script(RawRequest(api, body_of(**{"stream": True, **fields})), injected, now_s, 1e9)


def contents(script: Script) -> list[float]:
    """Return the times of content."""
    return [step.at_s for step in script.steps if step.frame.kind is FrameKind.CONTENT]


def text_of(script: Script) -> str:
    """Return the text of a stream."""
    text = ""
    for step in script.steps:
        if step.frame.kind is FrameKind.CONTENT:
            for choice in json.loads(step.frame.raw[6:])["choices"]:
                text += choice["delta"].get("content") or ""
    return text


def answer_of(script: Script) -> Any:
    """A JSON answer."""
    assert script.json
    return json.loads(script.steps[0].frame.raw)
