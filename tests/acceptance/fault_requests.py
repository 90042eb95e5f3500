"""Requests of clients of four APIs under every kind of fault; no two have the same answer. Pure.

Each kind of fault has models with three replicas, two of which give the same answer. The replicas of a native pool
serve all APIs. Replicas of a mixed pool serve one API each, so answers are translated. Replicas of an unstreamed pool
are mixed too and reject streams, so that the gateway asks them for JSON. All are used without and with recovery.
"""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, get_args

from marked_texts import Form, Marked
from raw_http import request_bytes
from ttft_gateway.apis.base import Api

_EVENTS = (0, 1, 5, 11)  # after which a stream breaks
_LATER = (1, 5, 11, 17)  # the same after at least one event
_SHARE = "9%"  # of the attempts, for each of them
_BEFORE = ("500", "503", "json_error", "empty", "done", "reset", "silence", "headers_silence")
_BREAKS = ("cut_rst", "cut_fin", "cut_chunked", "cut_mid", "short", "error_frame", "error_event", "finish_error")
REFUSED = ("content_policy", "refusal", "content_filter:4")
FAULTS: Final[Mapping[str, Sequence[str]]] = {
    "429": ["429:1s 10%"],
    **{fault: [f"{fault} 35%"] for fault in (*_BEFORE, *REFUSED)},
    **{fault: [f"{fault}:{events} {_SHARE}" for events in _EVENTS] for fault in _BREAKS},
    "failed": [f"{status}_event:{events} 5%" for status in ("failed", "cancelled") for events in _EVENTS],
    "bare_done": [f"done:{events} {_SHARE}" for events in _LATER],
    "malformed": [f"malformed:{events}+malformed:{events + 1} {_SHARE}" for events in _EVENTS],
    "stall": [f"stall:{events},30s {_SHARE}" for events in _EVENTS],
}
SEEDS: Final = (0, 1)
"""Seeds of the replicas' texts; two replicas of each pool have the first one."""

_EVERY_API = [api.value for api in (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)]
_NATIVE: Mapping[str, object] = {"kind": "vllm", "apis": _EVERY_API}
POOLS: Final[Mapping[str, Sequence[Mapping[str, object]]]] = {
    "native": (_NATIVE, _NATIVE, _NATIVE),
    "mixed": (
        {"kind": "vllm", "apis": [Api.CHAT.value]},
        {"kind": "anthropic", "cancel_stops_billing": True},
        {"kind": "vllm", "apis": [Api.RESPONSES.value]},
    ),
    "unstreamed": (
        {"kind": "vllm", "apis": [Api.CHAT.value, Api.COMPLETIONS.value]},
        {"kind": "anthropic", "cancel_stops_billing": True},
        {"kind": "vllm", "apis": [Api.RESPONSES.value, Api.COMPLETIONS.value]},
    ),
}
"""Settings of the replicas by the name of the pool."""

RECOVERIES: Final = ("off", "auto", "replay")
_SHAPES: Final = tuple(
    (api, pool, stream, recovery)
    for api in (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)
    for pool in POOLS
    for stream in (True, False)
    for recovery in RECOVERIES
    if (api, pool) != (Api.COMPLETIONS, "mixed")  # nothing is translated to completions
)
_STEP = 7  # from one shape to the next, so that a part of them is a mixture; no divisor of their number


class Asked(NamedTuple):
    """One request.

    Attributes:
        kind: kind of fault.
        api: API of the client.
        pool: one of POOLS.
        stream: the client asks for a stream.
        recovery: mode of the model.
        marked: what is asked for.
    """

    kind: str
    api: Api
    pool: str
    stream: bool
    recovery: str
    marked: Marked

    @property
    def model(self) -> str:
        """Name of the model."""
        return model_of(self.kind, self.pool, self.recovery)

    @property
    def shape(self) -> str:
        """Description without the kind of fault."""
        return f"{self.api.value} {'stream' if self.stream else 'JSON'}, {self.pool}, recovery {self.recovery}"

    def raw(self) -> bytes:
        """Return the bytes of the request."""
        body = json.dumps(self.marked.body(self.api, self.model, stream=self.stream)).encode()
        return request_bytes(body, f"/v1/{self.api.value}")


def model_of(kind: str, pool: str, recovery: str) -> str:
    """Return the name of a model."""
    return f"{kind}.{pool}.{recovery}".replace(":", "-")


def request_of(kind: str, number: int, seed: int) -> Asked:
    """Return the request with this number among the requests of its kind of fault and seed."""
    place = list(FAULTS).index(kind)
    api, pool, stream, recovery = _SHAPES[(_STEP * number + place) % len(_SHAPES)]
    unique = (seed * len(FAULTS) + place) * 1_000_000 + number
    rng = random.Random(unique)
    form: Form = rng.choice(_FORMS.get(api, get_args(Form)))
    marked = Marked(unique, form, rng.randrange(8, 25), rng.choice(("stop", "length")))
    return Asked(kind, api, pool, stream, recovery, marked)


_FORMS: Mapping[Api, Sequence[Form]] = {  # those that each API can express
    Api.COMPLETIONS: ("text", "choices"),
    Api.RESPONSES: ("text", "thinking", "tool"),
    Api.MESSAGES: ("text", "thinking", "tool"),
}
