"""The admin application with a pretended gateway, called without a socket."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import msgspec

from gateway.config.settings import Settings
from gateway.errors import ReloadFailed
from gateway.health.history import History, ModelHistory
from gateway.observe.metrics import Metrics, Scrape
from gateway.observe.proof import ProofCounts
from gateway.observe.state import AdmissionState, PoolState, ShareState
from gateway.observe.usage import UsageReport, UsageTable
from gateway.process_events import ConfigReloaded, HedgingSwitched
from gateway.proof.blocks import Block
from gateway.proof.tally import Tally
from gateway.server.admin import Admin, Controls
from running import run_virtual
from sample_events import pool

Message = dict[str, Any]
SINCE = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
NONE: Mapping[str, str] = MappingProxyType({})


class Exchange:
    """One HTTP exchange with an ASGI app, as the server sees it; its body arrives piece by piece."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.begun = asyncio.Event()
        self.reading = asyncio.Event()
        self.reading.set()
        self.complete = False

    async def run(self, app: Any, method: str, path: str, headers: Mapping[str, str], query: bytes = b"") -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 8081),
        }
        await app(scope, self.inbox.get, self._send)

    async def _send(self, message: Message) -> None:
        await self.reading.wait()
        if message["type"] == "http.response.start":
            self.begun.set()
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.complete = not message.get("more_body", False)
            self.pieces.put_nowait(message["body"])

    def send_body(self, body: bytes, *, more: bool = False) -> None:
        self.inbox.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def leave(self) -> None:
        self.inbox.put_nowait({"type": "http.disconnect"})


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class PretendedView:
    """The state of the gateway of an `AdminUnderTest`."""

    def __init__(self, site: "AdminUnderTest") -> None:
        self._site = site

    async def scrape(self) -> Scrape:
        return await self._site.metrics.scrape()

    async def pools(self) -> list[PoolState]:
        return list(self._site.state())

    async def health(self) -> Mapping[str, object]:
        return {"state": "well"}

    async def history(self, model: str) -> ModelHistory:
        return await History(0.0).of_model(model, 0.0)

    async def admission(self) -> AdmissionState:
        return AdmissionState()

    async def usage(self, key: str | None, model: str | None) -> UsageReport:
        return self._site.usage.report(key, model)

    async def proof(self, hours: int | None) -> Mapping[str, Tally]:
        return self._site.proof.tallies(hours)

    async def share(self) -> ShareState | None:
        return None

    async def blocks(self, begin: str) -> list[Block]:
        return []

    async def describe(self, model: str, quantiles: Sequence[float]) -> Mapping[str, object] | None:
        return self._site.describe(model, quantiles)

    def serves(self, model: str) -> bool:
        return model in self._site.models


@dataclass
class AdminUnderTest:
    """An admin app over two models; switching is stored, and sent to the feed as by the gateway."""

    key: str | None = None
    hosts: tuple[str, ...] = ()
    off: set[str] = field(default_factory=set)
    models: tuple[str, ...] = ("llama", "org/qwen")
    fault: str | None = None
    switched: list[tuple[str, str | None, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.usage = UsageTable(lambda: SINCE)
        self.metrics = Metrics(self.state, usage=self.usage)
        self.proof = ProofCounts(lambda _: None)
        view = PretendedView(self)
        replica = {"name": "a", "kind": "vllm", "base_url": "http://127.0.0.1:1/v1"}
        settings = Settings.model_validate(
            {"models": [{"name": "m", "replicas": [replica]}], "admin_key": self.key, "hosts": self.hosts}
        )
        self.admin = Admin(view, Controls(self.switch, self.switch_replica, self.reload), lambda: settings)

    def state(self) -> Iterable[PoolState]:
        return [pool(model, hedging_on=model not in self.off) for model in self.models]

    def describe(self, name: str, quantiles: Sequence[float]) -> Mapping[str, object] | None:
        return {"model": name, "pools": ["a picture", *quantiles]} if name in self.models else None

    async def switch(self, model: str | None, *, on: bool) -> None:
        for name in self.models if model is None else (model,):
            (self.off.discard if on else self.off.add)(name)
        self.admin.on_event(HedgingSwitched(0.0, model, on))

    async def switch_replica(self, replica: str, model: str | None, *, out: bool) -> None:
        self.switched.append((replica, model, out))

    async def reload(self) -> ConfigReloaded:
        if self.fault is not None:
            raise ReloadFailed(self.fault)
        return ConfigReloaded(0.0, models=2, kept=3, new=1)

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = NONE, query: bytes = b""
    ) -> Answer:
        """A whole exchange."""

        async def exchange() -> Answer:
            open_exchange = Exchange()
            open_exchange.send_body(body)
            await open_exchange.run(self.admin.app, method, path, headers, query)
            pieces = [open_exchange.pieces.get_nowait() for _ in range(open_exchange.pieces.qsize())]
            return Answer(open_exchange.status, open_exchange.headers, b"".join(pieces))

        return run_virtual(exchange())

    def refusal(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = NONE) -> tuple[int, str]:
        """Return status and code of an error; its body has OpenAI's shape."""
        answer = self.ask(method, path, body, headers)
        assert set(answer.json) == {"error"}
        assert set(answer.json["error"]) == {"message", "type", "param", "code"}
        return answer.status, answer.json["error"]["code"]
