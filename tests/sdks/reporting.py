"""What the Python clients of the matrix share: where the gateway is, their checks, and a JSON line for each on stdout.

A client runs in an environment that has its SDK and nothing of this project, so this imports the standard library only.
Units: seconds.
"""

import asyncio
import json
import sys
import threading
import traceback
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

PROMPT = "Say something about rivers."
TOOL = "weather"
PARAMETERS = {
    "type": "object",
    "properties": {"town": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["town", "days"],
    "additionalProperties": False,
}
ANSWER_TOKENS = 20  # a bound on an answer; simulated replicas use it up, so such an answer ends with its length
_HASTY_S = 0.5  # the patience of a client that leaves before the first token, which takes a minute
_CLOSED_S_MAX = 5.0
_POLL_S = 0.02
_FOUND_MAX = 400  # characters of a failure

Check = Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class Scene:
    """What runs.

    Attributes:
        gateway: its address, without /v1.
        key: of a caller.
        upstream: what the replicas speak: openai or anthropic.
        stats: for each model, the address of its replica's counters.
    """

    gateway: str
    key: str
    upstream: str
    stats: dict[str, str]


scene = Scene(**json.loads(sys.argv[1]))
awaited = asyncio.Runner().run  # one loop for all: an SDK may keep connections that belong to the first it sees
_checks: list[tuple[str, Check]] = []


def check(name: str, *upstreams: str) -> Callable[[Check], Check]:
    """Makes a function a check: it raises when something is wrong, and may return a word for the table.

    Args:
        name: as checks.py has it.
        upstreams: what the replicas must speak; nothing: any.
    """

    def keep(function: Check) -> Check:
        if not upstreams or scene.upstream in upstreams:
            _checks.append((name, function))
        return function

    return keep


def run() -> None:
    """All checks in order; a failure ends its check only."""
    for name, function in _checks:
        try:
            line: dict[str, object] = {"check": name, "ok": True, "said": function() or ""}
        except Exception as error:
            traceback.print_exc()
            line = {"check": name, "ok": False, "said": f"{type(error).__name__}: {error}"[:_FOUND_MAX]}
        print(json.dumps(line), flush=True)


def raised(call: Callable[[], object], name: str, status: int | None) -> str:
    """The class of what a call raises: this one or one of its kind, with this status (None: it need not have one)."""
    try:
        call()
    except Exception as error:
        found = type(error).__name__
        assert name in [kind.__name__ for kind in type(error).__mro__], f"raised {found}, no {name}: {error}"
        code = getattr(error, "status_code", None)
        assert status is None or code == status, f"{found} has status {code}, not {status}"
        return found
    raise AssertionError(f"no {name} was raised")


def left(model: str, leave: Callable[[], object]) -> None:
    """A client leaves, and the model's only replica must see its connection closed."""
    before = _cancelled(model)
    leave()
    clock = threading.Event()
    for _ in range(int(_CLOSED_S_MAX / _POLL_S)):
        if _cancelled(model) > before:
            return
        clock.wait(_POLL_S)
    raise AssertionError(f"the replica still answers {_CLOSED_S_MAX} s after the client left")


async def impatient(call: Awaitable[object]) -> None:
    """A call that its caller drops before the first token."""
    try:
        await asyncio.wait_for(call, _HASTY_S)
    except TimeoutError:
        return
    raise AssertionError("there was an answer, and nothing to wait for")


def is_weather(arguments: object) -> None:
    """The arguments of a tool's call, or a structured answer, fit `PARAMETERS`."""
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert isinstance(given, dict), given
    assert given.keys() == {"town", "days"}, given
    assert isinstance(given["town"], str), given
    assert isinstance(given["days"], int), given


def _cancelled(model: str) -> int:
    with urllib.request.urlopen(scene.stats[model], timeout=_CLOSED_S_MAX) as answer:
        return int(json.load(answer)["cancelled"])
