"""Callers with mistakes and accounts that are dead, over sockets, before a gateway that is a process of its own.

Each form of error has a model of its own. A model of `MISTAKES` has two replicas that reject the requests of one
caller and answer another caller's, and a fallback; a model of `DEAD` has one replica that rejects everything, and a
healthy one. One server plays all replicas; it tells them apart by their names of the model. Units: seconds.
"""

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from error_forms import DEAD, MISTAKES
from raw_http import ASK, answer, request_bytes
from scripted_http import Script, read_request, serving
from served import gateway

_EVENTS = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (len(_EVENTS), _EVENTS)
_DEAD_REQUESTS = 30
_KEYS = {"mistaken": "sk-mistaken", "careful": "sk-careful"}
_MISCONFIGURED = re.compile(
    r'^ttft_gateway_attempts_total\{(?=[^}]*outcome="misconfigured")(?=[^}]*replica="dead")[^}]*"dead\.([^"]+)"',
    re.MULTILINE,
)
_CHANGED = re.compile(r"breaker_changed.*?((?:mistake|dead)\.[\w-]+)")


@dataclass
class Blamed:
    """The results.

    Attributes:
        careful: requests of the careful caller by form of the other's mistakes and by replica; "error" for an error.
        mistaken: statuses of the mistaken caller by form.
        dead: errors that callers got while there was a dead account, by form.
        asked: requests that a dead account received, by form.
        named: forms for which the metric names the dead replica.
        changes: changes of breakers, by model.
        took_s: seconds from the first request to the last answer.
    """

    careful: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in MISTAKES})
    mistaken: dict[str, Counter[int]] = field(default_factory=lambda: {name: Counter() for name in MISTAKES})
    dead: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    named: set[str] = field(default_factory=set)
    changes: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0


async def blamed(folder: Path, *, mistakes: int, careful: int, every_s: float) -> Blamed:
    """Let two callers send requests to all models at the same time.

    Args:
        folder: for the gateway's files.
        mistakes: requests of the mistaken caller for each form.
        careful: requests of the careful caller for each of them; the first is sent at the same time.
        every_s: time between the requests of the careful caller; 0 for none.
    """
    seen = Blamed()
    async with serving(_script(seen)) as server, contextlib.AsyncExitStack() as opened:
        served = await asyncio.to_thread(opened.enter_context, gateway(_config(server.port), folder))
        port = urlsplit(served.url).port or 0

        async def make_mistakes(name: str) -> None:
            for number in range(mistakes):
                _, (status, _) = await asyncio.gather(
                    ask_carefully(name, f"{number}"), _ask(port, "mistaken", f"mistake.{name}", f"bad {number}")
                )
                seen.mistaken[name][status] += 1
                for again in range(1, careful):
                    await asyncio.sleep(every_s)
                    await ask_carefully(name, f"{number} {again}")

        async def ask_carefully(name: str, prompt: str) -> None:
            _, replica = await _ask(port, "careful", f"mistake.{name}", prompt)
            seen.careful[name][replica] += 1

        async def ask_the_dead(name: str) -> None:
            for number in range(_DEAD_REQUESTS):
                status, _ = await _ask(port, "careful", f"dead.{name}", f"{number}")
                seen.dead[name] += status != HTTPStatus.OK

        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        async with asyncio.TaskGroup() as tasks:
            for name in MISTAKES:
                tasks.create_task(make_mistakes(name))
            for name in DEAD:
                tasks.create_task(ask_the_dead(name))
        seen.took_s = now_s() - began_s
        metrics = await asyncio.to_thread(httpx.get, f"{served.admin_url}/metrics")
        seen.named = set(_MISCONFIGURED.findall(metrics.text))
        seen.changes.update(_CHANGED.findall((folder / "gateway.log").read_text(encoding="utf-8")))
    return seen


async def _ask(port: int, caller: str, model: str, prompt: str) -> tuple[int, str]:
    """Send a request; return its status, and the replica that answered it, "error" for an error."""
    body = json.dumps({**ASK, "model": model, "messages": [{"role": "user", "content": prompt}]}).encode()
    authorization = {"authorization": f"Bearer {_KEYS[caller]}"}
    async with answer(port, request_bytes(body, headers=authorization)) as got:
        await got.body()
        return got.status, got.headers.get("x-ttft-replica", "error")


def _config(port: int) -> dict[str, object]:
    """Return the configuration: models by form, over replicas that differ in their name of the model."""

    def row(name: str, model: str) -> dict[str, str]:
        return {"name": name, "kind": "vllm", "base_url": f"http://127.0.0.1:{port}/v1", "model": model}

    models: list[dict[str, object]] = [
        {
            "name": f"mistake.{name}",
            "replicas": [row("a", f"mistake.{name}"), row("b", f"mistake.{name}")],
            "fallbacks": [{"replicas": [row("fallback", "good")]}],
        }
        for name in MISTAKES
    ]
    models += [
        {"name": f"dead.{name}", "replicas": [row("dead", f"dead.{name}"), row("good", "good")]} for name in DEAD
    ]
    keys = [{"name": name, "key": key} for name, key in _KEYS.items()]
    return {"keys": keys, "models": models, "hedge": {"policy": "off"}}


def _script(seen: Blamed) -> Script:
    """Play every replica: the name of the model and the prompt decide."""

    def reply(body: Mapping[str, object]) -> bytes:
        kind, _, name = str(body["model"]).partition(".")
        if kind == "mistake" and "bad" in json.dumps(body):
            return MISTAKES[name].response()
        if kind == "dead":
            seen.asked[name] += 1
            return DEAD[name].response()
        return _WHOLE

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await read_request(reader)
            writer.write(reply(json.loads(body)))
            await writer.drain()

    return script
