"""`probe`: asks each replica of a configuration a few times, and tells times, limits, cancelling and quirks.

Speaks to replicas as the gateway itself does, with its client, its endpoint and its reader of events; no traffic of
callers is touched. What fails is a result like any other. Says before it begins what that may cost. Units: seconds.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import urlsplit

from gateway.cli.config import config_path, tell_problems
from gateway.cli.environment import read_environment
from gateway.cli.parser import ExitCode
from gateway.cli.probe.cancel import COUNTERS, CancelTest, TokenCounter, cancel
from gateway.cli.probe.plan import PROMPT, ProbeTarget, left_tokens, plan, targets
from gateway.cli.probe.quirks import OF_CHAT, Quirk
from gateway.cli.probe.report import ProbeReport, as_json, cleaned, details, limits_of, quirks_of, table, times_of
from gateway.cli.probe.stream import Recording, Tap, begin, fetch, record
from gateway.cli.terminal import bold, fail
from gateway.config.errors import ConfigError
from gateway.config.loader import load
from gateway.config.settings import Settings
from gateway.inbound.parsed import NumberLimits as RequestBounds
from gateway.inbound.request import parse
from gateway.upstreams import endpoint_at, native_apis, needs_httpx, origin_of, upstream_headers
from providers.base import Api, Call, HttpSink, HttpStream, Request
from providers.catalog import CATALOG
from providers.error_reasons import is_stream_refused
from providers.errors import ConnectError, UpstreamError
from providers.protocols import ProtocolOptions, protocols
from providers.transport.http1 import WireClient
from providers.transport.httpx_client import HttpxClient

_AT_ONCE_MAX = 4  # replicas; more would be in each other's way, here or on their machines
_MODELS_TOLD_MAX = 10
_SECRET_MIN = 8  # characters
_BILL = {
    True: "a public list says that closing ends the bill (not verified)",
    False: "a public list says that the bill runs on (not verified)",
    None: "whether closing ends the bill is not known",
}


def probe(arguments: argparse.Namespace) -> ExitCode:
    """Probe the replicas, unless that costs more than was agreed to."""
    try:
        file = config_path(arguments.config, os.environ)
        settings = load(file, os.environ, read_environment(os.environ).settings)
    except ConfigError as error:
        return tell_problems(error)
    chosen = targets(settings, arguments.model, arguments.replica)
    if not chosen:
        there_are = ", ".join(target.name for target in targets(settings, None, None))
        fail(f"{file} has no such replica; there are {there_are} (--model is before the /, --replica behind it)")
        return ExitCode.USAGE
    planned = plan(chosen, arguments.requests, arguments.max_tokens)
    print(planned, file=sys.stderr, flush=True)
    if (objection := planned.objection(confirmed=arguments.yes)) is not None:
        fail(objection)
        return ExitCode.USAGE
    with asyncio.Runner() as runner:
        reports = runner.run(probe_all(settings, chosen, arguments.requests, arguments.max_tokens))
    _show(reports, as_document=arguments.json)
    return ExitCode.FAILED if any(report.error for report in reports) else ExitCode.OK


async def probe_all(
    settings: Settings, chosen: Sequence[ProbeTarget], requests: int, max_tokens: int
) -> list[ProbeReport]:
    """Probe replicas, a few at a time, and one after the other's requests.

    Args:
        settings: for time-outs and limits.
        chosen: the replicas.
        requests: whole answers of each.
        max_tokens: of each of these answers.
    """
    turn = asyncio.Semaphore(_AT_ONCE_MAX)

    async def one(target: ProbeTarget) -> ProbeReport:
        async with turn:
            prober = _Prober(settings, target, tasks)
            try:
                return await prober.report(requests, max_tokens)
            finally:
                prober.close()

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one(target)) for target in chosen]
    return [task.result() for task in running]


def _show(reports: Sequence[ProbeReport], *, as_document: bool) -> None:
    if as_document:
        ok = not any(report.error for report in reports)
        print(json.dumps({"ok": ok, "replicas": [as_json(report) for report in reports]}, indent=2))
        return
    header, *rows = table(reports)
    print(bold(header, sys.stdout), *rows, sep="\n")
    for report in reports:
        print("", *details(report), sep="\n")


class _WireClient(WireClient):
    """The gateway's client, made to tell a recording of connections and bytes; see `probe_stream.Client`."""

    recording: Recording | None = None

    def send(self, request: Request, sink: HttpSink) -> HttpStream:
        return super().send(request, sink if self.recording is None else Tap(self.recording, sink))

    def opened(self) -> None:
        super().opened()
        if self.recording is not None:
            self.recording.on_connected()


class _HttpxClient(HttpxClient):
    """The same of the general client."""

    recording: Recording | None = None

    def send(self, request: Request, sink: HttpSink) -> HttpStream:
        return super().send(request, sink if self.recording is None else Tap(self.recording, sink))

    def opened(self) -> None:
        if self.recording is not None:
            self.recording.on_connected()


@dataclass(frozen=True, slots=True)
class _Form:
    """How a replica is asked; what it refuses is left out or written differently."""

    usage: bool
    max_tokens: int
    tokens_key: str = "max_tokens"

    def call(self) -> Call:
        """The request, read as one of a caller would be."""
        body: dict[str, object] = {
            "model": "any",  # the endpoint writes what the replica calls it
            "messages": [{"role": "user", "content": PROMPT}],
            self.tokens_key: self.max_tokens,
            "stream": True,
        }
        if self.usage:
            body["stream_options"] = {"include_usage": True}
        bounds = RequestBounds(n_max=1, max_tokens_max=self.max_tokens)
        return parse(Api.CHAT, json.dumps(body).encode(), (), bounds, frozenset()).call


class _Prober:
    """Probes one replica.

    Args:
        settings: for time-outs and limits.
        target: the replica.
        tasks: owner of connecting tasks.
    """

    def __init__(self, settings: Settings, target: ProbeTarget, tasks: asyncio.TaskGroup) -> None:
        self._target = target
        self._row = row = target.row
        self._kind = CATALOG[row.kind]
        self._path = urlsplit(row.base_url).path
        origin = origin_of(row, settings.timeouts.connect_s)
        self._client: _WireClient | _HttpxClient = (_HttpxClient if needs_httpx(origin) else _WireClient)(origin, tasks)
        self._sent = upstream_headers(row)
        able = protocols(
            replace(self._kind, supports_usage_option=False),  # token counts are asked for here, and then not
            native_apis(row),
            ProtocolOptions(first_token=target.model.first_token),
        )
        name, bytes_max = target.model.name, settings.limits.event_max_bytes
        self._endpoint = endpoint_at(self._client, row, able, name, bytes_max)
        self._refused: list[Quirk] = []

    def close(self) -> None:
        """Let go of idle connections."""
        self._client.close()

    async def report(self, requests: int, max_tokens: int) -> ProbeReport:
        """Ask for whole answers until one fails, then leave one."""
        form = _Form(self._kind.supports_usage_option, max_tokens)
        recordings: list[Recording] = []
        for number in range(requests):
            unasked = requests > 1 and number == requests - 1  # do token counts come all the same?
            recording, form = await self._asked(replace(form, usage=form.usage and not unasked))
            recordings.append(recording)
            if recording.error is not None:
                break
        last = recordings[-1]
        streams = sum(recording.error is None for recording in recordings)
        times = times_of(recordings)
        left = None
        if last.error is None:
            left = await self._left(replace(form, max_tokens=left_tokens(self._target, max_tokens)), times.gap_s or 0.0)
        clean = partial(cleaned, secrets=self._secrets())
        return ProbeReport(
            model=self._target.model.name,
            replica=self._row.name,
            kind=self._row.kind,
            error=None if last.error is None else clean(await self._told(last.error, max_tokens)),
            streams=streams,
            times=times,
            limits={name: clean(value) for name, value in limits_of(last).items()},
            cancel=left and replace(left, text=clean(left.text)),
            quirks=[replace(each, text=clean(each.text)) for each in self._quirks(recordings, streams)],
        )

    def _quirks(self, recordings: Sequence[Recording], streams: int) -> list[Quirk]:
        """What was refused counts only where the request was taken without it."""
        found = [*(self._refused if streams else ()), *quirks_of(recordings)]
        return found if Api.CHAT in native_apis(self._row) else [each for each in found if each.name not in OF_CHAT]

    async def _asked(self, form: _Form) -> tuple[Recording, _Form]:
        """A recording, and the form in which the replica took the request."""
        recording = await record(self._client, self._endpoint, form.call())
        other = self._other(form, recording.error)
        if other is None:
            return recording, form
        return await self._asked(other)

    def _other(self, form: _Form, error: UpstreamError | None) -> _Form | None:
        """Another form to ask in, where the replica refused this one; each thing is left out once."""
        if error is None:
            return None
        if form.usage and is_stream_refused(error):
            self._refused.append(Quirk("stream_options_refused", "`stream_options` is refused: no token counts"))
            return replace(form, usage=False)
        names = f"{error.param} {error.message}"
        if error.status == 400 and form.tokens_key == "max_tokens" and "max_completion_tokens" in names:
            self._refused.append(Quirk("max_tokens_refused", "`max_tokens` is refused: `max_completion_tokens` it is"))
            return replace(form, tokens_key="max_completion_tokens")
        return None

    async def _left(self, form: _Form, gap_s: float) -> CancelTest:
        """Begin one more answer and leave it."""
        counter = COUNTERS.get(self._row.kind)
        path = self._path.removesuffix("/v1")

        async def count() -> float | None:
            self._client.recording = None
            document = await fetch(self._client, path + counter.path, self._sent) if counter else None
            return counter.read(document) if counter and document is not None else None

        start = partial(begin, self._client, self._endpoint, form.call())
        return await cancel(start, count if counter else None, gap_s, self._blind(counter))

    def _blind(self, counter: TokenCounter | None) -> str:
        """What to say where it cannot be seen whether the replica stops."""
        if counter is not None:
            needs = f" (start it with {counter.needs})" if counter.needs else ""
            return f"GET {counter.path} does not tell what the replica works on{needs}"
        unseen = "what the replica then does cannot be seen"
        return unseen if self._kind.own_engine else f"{unseen}; {_BILL[self._kind.cancel_stops_billing]}"

    async def _told(self, error: UpstreamError, max_tokens: int) -> str:
        """How it failed, with what to do where that is known."""
        said = error.message if error.status is None else f"status {error.status}: {error.message}"
        if isinstance(error, ConnectError):
            private = "; SSL_CERT_FILE names the file of authorities to trust" if "CERTIFICATE" in said else ""
            return f"{said}; is it running, and is {self._row.base_url} right?{private}"
        if error.status in (401, 403):
            return f"{said}; {'no api_key is configured' if self._row.api_key is None else 'check its api_key'}"
        if error.status == 404:
            return f"{said}; {await self._models()}"
        if error.label == "empty":
            return f"{said}; if it thinks before it answers, --max-tokens {max(256, max_tokens)} or more may do"
        return said

    async def _models(self) -> str:
        """What the replica says that it serves."""
        document = await fetch(self._client, f"{self._path}/models", self._sent)
        try:
            names = [str(row["id"]) for row in json.loads(document or b"")["data"]]
        except (ValueError, LookupError, TypeError):
            return f"{self._row.base_url}/models lists nothing, either: is base_url right?"
        told = ", ".join(names[:_MODELS_TOLD_MAX]) or "no model"
        return f"it lists {told}: write one of them as this replica's `model`"

    def _secrets(self) -> list[str]:
        """What must not be shown; a header value as short as a word is no secret, and would be found everywhere."""
        keys = [] if self._row.api_key is None else [self._row.api_key]
        values = [header.get_secret_value() for header in self._row.headers.values()]
        return [*(key.get_secret_value() for key in keys), *(value for value in values if len(value) >= _SECRET_MIN)]
