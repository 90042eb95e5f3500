"""`GET /v1/models` has what all engines of a model state, asked when a caller asks, and never waits for long."""

import asyncio
import json
from collections.abc import Callable

import msgspec
import pytest

from gateway.api.model_cards import Facts, ModelCards, stated
from gateway.race.context import Model
from running import run_virtual
from ttft_gateway.apis.base import HttpSink
from ttft_gateway.apis.errors import ConnectionCut
from ttft_gateway.apis.passing import PassedCall
from ttft_gateway.routing.replicas import Replica


class Engine:
    """A replica's endpoint that answers the list of models after a time; None: it never does.

    Attributes:
        asked: number of requests.
    """

    model = "org/llama"

    def __init__(self, body: bytes, after_s: float | None = 0.1, status: int = 200) -> None:
        self.body, self.after_s, self.status = body, after_s, status
        self.asked = self.aborted = 0

    def open(self, *_: object) -> None:
        """Answer no calls."""

    def pass_on(self, call: PassedCall, sink: HttpSink) -> "Engine":
        """Answer."""
        assert (call.method, call.path) == (b"GET", b"/models")
        self.asked += 1
        if self.after_s is not None:
            asyncio.get_running_loop().call_later(self.after_s, self._answer, sink)
        return self

    def _answer(self, sink: HttpSink) -> None:
        if not self.status:
            sink.on_close(ConnectionCut("reset"))
            return
        sink.on_response(self.status, ())
        sink.on_body(self.body)
        if not self.aborted:
            sink.on_close(None)

    def abort(self) -> None:
        """Count."""
        self.aborted += 1


def listed(*entries: dict[str, object]) -> bytes:
    """Return a list of models."""
    return json.dumps({"object": "list", "data": entries}).encode()


VLLM = {"id": "org/llama", "object": "model", "owned_by": "vllm", "root": "org/llama", "max_model_len": 32768}


def replica(name: str, endpoint: object, *, own: bool = True, secrets: tuple[str, ...] = ()) -> Replica:
    """Return a replica with this endpoint."""
    return Replica(name=name, endpoint=endpoint, source=name, batches=own, secrets=secrets)  # type: ignore[arg-type] # a double


class _Pool(msgspec.Struct):
    replicas: list[Replica]


def model(*replicas: Replica) -> Model:
    """Return a model with one pool."""
    return Model("m", [_Pool(list(replicas))], None)  # type: ignore[list-item, arg-type] # the parts that are read


def asked(*rounds: tuple[float, Model]) -> list[tuple[float, Facts]]:
    """Ask at these times; return the delay of each caller, and what it got."""

    async def main() -> list[tuple[float, Facts]]:
        loop = asyncio.get_running_loop()
        cards, seen = ModelCards(loop), list[tuple[float, Facts]]()
        for at_s, each in rounds:
            await asyncio.sleep(at_s - loop.time())
            done, began_s = asyncio.Event(), loop.time()
            cards.ask([each], done.set)
            await done.wait()
            seen.append((round(loop.time() - began_s, 3), cards.facts(each)))
        return seen

    return run_virtual(main())


def test_what_all_replicas_state_is_passed_on() -> None:
    """A field in which one differs is left out; replicas are asked at the same time, and once."""
    a, b = Engine(listed(VLLM)), Engine(listed({**VLLM, "owned_by": "sglang"}), after_s=0.3)
    facts = {"max_model_len": 32768, "root": "org/llama"}
    whole = model(replica("a", a), replica("b", b))
    assert asked((1, whole), (2, whole)) == [(0.3, facts), (0.0, facts)]
    assert (a.asked, b.asked) == (1, 1)


@pytest.mark.parametrize(
    "other",
    [
        lambda: Engine(b"", after_s=None),
        lambda: Engine(b"<html>"),
        lambda: Engine(listed(VLLM), status=401),
        lambda: Engine(b"", status=0),
        lambda: Engine(listed({"id": "x"}, {"id": "y"})),
        lambda: Engine(b" " * 2_000_000 + listed(VLLM)),
    ],
    ids=["silent", "no JSON", "status", "connection cut", "another model", "without end"],
)
def test_a_replica_that_states_nothing_hides_what_the_others_state(other: Callable[[], Engine]) -> None:
    """The caller waits a second at most, and the replica is asked again half a minute later."""
    engine = other()
    whole = model(replica("a", Engine(listed(VLLM))), replica("b", engine))
    (waited_s, facts), again, later = asked((1, whole), (10, whole), (60, whole))
    assert waited_s <= 1.0
    assert facts == {}
    assert again == (0.0, {})
    assert later[1] == {}
    assert engine.asked == 2


def test_what_was_stated_is_renewed() -> None:
    """After ten minutes an engine may have another model; a failure meanwhile forgets nothing."""
    engine = Engine(listed(VLLM))
    whole = model(replica("a", engine))
    first, second = asked((1, whole), (700, whole))
    assert first == second
    assert engine.asked == 2


def test_providers_are_not_asked() -> None:
    """They state no length; a model with one as a fallback has none that all agree in."""
    provider = Engine(listed(VLLM))
    whole = model(replica("a", Engine(listed(VLLM))), replica("b", provider, own=False))
    assert asked((1, whole)) == [(0.1, {})]
    assert provider.asked == 0


def test_many_replicas_are_asked_a_few_at_a_time() -> None:
    """A caller gets 64 replicas asked, eight in each turn of the loop; the next caller gets the others asked."""
    engines = [Engine(listed(VLLM)) for _ in range(100)]
    models = [model(replica(f"r{number}", engine)) for number, engine in enumerate(engines)]
    begun = list[int]()

    async def main() -> None:
        cards, done = ModelCards(asyncio.get_running_loop()), asyncio.Event()
        for _ in range(2):
            cards.ask(models, done.set)
            for _ in range(10):
                begun.append(sum(engine.asked for engine in engines))
                await asyncio.sleep(0)
            await done.wait()
            done.clear()
        assert all(cards.facts(each) for each in models)

    run_virtual(main())
    assert begun[:9] == [8, 16, 24, 32, 40, 48, 56, 64, 64]
    assert begun[-1] == 100


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        (listed({"id": "base"}), {}),  # one model: an alias of it
        (
            listed({"id": "other", "max_model_len": 1}, VLLM),
            {k: VLLM[k] for k in ("max_model_len", "owned_by", "root")},
        ),
        (listed({**VLLM, "max_model_len": 0, "owned_by": "", "root": None}), {}),
        (listed({**VLLM, "root": "sk-secret/x", "owned_by": "x" * 300}), {"max_model_len": 32768}),
        (listed({**VLLM, "max_model_len": "32768"}), None),
        (b"[]", None),
        (listed(), None),
    ],
)
def test_what_a_list_states(body: bytes, facts: Facts | None) -> None:
    """Values of the wrong type state nothing, and no secret is passed on."""
    assert stated(body, replica("a", Engine(b""), secrets=("sk-secret",))) == facts
