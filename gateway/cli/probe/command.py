"""`probe`: sends a few requests to each replica of a configuration, and reports times, limits, cancellation and quirks.

Requests use the gateway's own client, endpoint and event reader; the traffic of callers is not affected. A failed
replica is a result. The maximum cost is printed before the first request. Units: seconds.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Coroutine, Sequence
from functools import partial
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from gateway.cli.config import config_path, report_no_file, report_problems
from gateway.cli.environment import read_environment
from gateway.cli.event_loop import new_loop
from gateway.cli.fetch import fetch
from gateway.cli.kinds import detect_kinds
from gateway.cli.options import settings_of
from gateway.cli.parser import ExitCode
from gateway.cli.probe.cancel import COUNTERS, CancelTest, TokenCounter, cancel
from gateway.cli.probe.plan import PROMPT, ProbeTarget, cancel_test_tokens, plan, sign_apis, targets
from gateway.cli.probe.quirks import OF_CHAT, Quirk
from gateway.cli.probe.report import (
    ProbeReport,
    Times,
    as_json,
    cleaned,
    details,
    limits_of,
    quirks_of,
    table,
    times_of,
)
from gateway.cli.probe.signs import SignTest, sign_call, sign_test
from gateway.cli.probe.stream import Recording, Tap, begin, record
from gateway.cli.terminal import bold, fail, warn
from gateway.config.errors import ConfigError
from gateway.config.loader import load
from gateway.config.settings import Settings
from gateway.server.daemon_thread import on_thread
from gateway.server.discovery.sources import look_up
from gateway.server.upstreams import (
    endpoint_at,
    facts_of,
    native_apis,
    needs_httpx,
    origin_of,
    source_of,
    upstream_headers,
    with_token,
)
from providers.protocols import ProtocolOptions, protocols
from providers.transport.http1 import WireClient
from providers.transport.httpx_client import HttpxClient
from ttft_gateway.apis.base import Api, Call, HttpSink, HttpStream, Request
from ttft_gateway.apis.error_reasons import is_stream_refused
from ttft_gateway.apis.errors import ConnectError, ConnectionCut, UpstreamError
from ttft_gateway.credentials.sources import SourceFault, fetch_of
from ttft_gateway.credentials.token import NotAToken
from ttft_gateway.requests.parsed import NumberLimits as RequestBounds
from ttft_gateway.requests.request import parse

_AT_ONCE_MAX = 4  # replicas; more would compete for CPU, here or on their machines
_MODELS_LISTED_MAX = 10
_SECRET_MIN = 8  # characters
_WATCH_S = 0.02
_LATE_S = 0.05  # a delay of the event loop that shows in times to first token
_BILLING = {
    True: "according to a public list, closing ends billing (not verified)",
    False: "according to a public list, billing continues after closing (not verified)",
    None: "billing after closing is unknown",
}


def probe(arguments: argparse.Namespace) -> ExitCode:
    """Probe the replicas, unless the cost needs confirmation."""
    file, by_url = config_path(arguments.config, os.environ), any("://" in each for each in arguments.replica or ())
    if not by_url and arguments.config is None and not file.exists():
        return report_no_file(file, "probe --config FILE", "probe --model llama --replica http://10.0.0.1:8000/v1")
    try:
        chosen, settings = _chosen(arguments)
    except ConfigError as error:
        return report_problems(error)
    if not chosen:
        if arguments.model in (None, *(model.name for model in settings.models)) and not targets(
            settings, arguments.model, None
        ):
            fail(f"no replica of {arguments.model or 'any model'} was found; check its `discover` in {file}")
            return ExitCode.USAGE
        names = ", ".join(target.name for target in targets(settings, None, None))
        fail(f"{file} has no such replica; choose from {names} (--model is before the /, --replica after it)")
        return ExitCode.USAGE
    planned = plan(chosen, arguments.requests, arguments.max_tokens)
    print(planned, file=sys.stderr, flush=True)
    if (objection := planned.objection(confirmed=arguments.yes)) is not None:
        fail(objection)
        return ExitCode.USAGE
    with asyncio.Runner(loop_factory=new_loop) as runner:
        reports, late_s = runner.run(_timed(probe_all(settings, chosen, arguments.requests, arguments.max_tokens)))
    _show(reports, as_document=arguments.json)
    if late_s > _LATE_S:
        warn(
            f"this machine is busy: its own event loop was up to {1000 * late_s:.0f} ms late, which is part of the "
            "times above, so they do not compare the replicas; probe from a machine with less load"
        )
    return ExitCode.FAILED if any(report.error for report in reports) else ExitCode.OK


def _chosen(arguments: argparse.Namespace) -> tuple[list[ProbeTarget], Settings]:
    """Return the replicas to probe: of the configuration, by name, or the replicas at the given URLs.

    Raises:
        ConfigError: the configuration, an option or a URL is wrong.
    """
    environment, names = read_environment(os.environ), arguments.replica or [None]
    if any("://" in name for name in arguments.replica or ()):
        settings = settings_of(arguments, os.environ, environment)
        settings = settings if arguments.kind else detect_kinds(settings)
        return targets(settings, None, None), settings
    settings = load(config_path(arguments.config, os.environ), os.environ, environment.settings)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        settings, faults = runner.run(look_up(settings, os.environ))
    for fault in faults:
        warn(fault)
    return [target for name in names for target in targets(settings, arguments.model, name)], settings


async def _timed(probing: Coroutine[object, object, list[ProbeReport]]) -> tuple[list[ProbeReport], float]:
    """Return the reports, and the longest delay of the event loop beside them, apart from one in a hundred."""
    loop, delays = asyncio.get_running_loop(), list[float]()

    async def watch() -> None:
        while True:
            begun_s = loop.time()
            await asyncio.sleep(_WATCH_S)
            delays.append(loop.time() - begun_s - _WATCH_S)

    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch())
        reports = await probing
        watching.cancel()
    delays.sort()
    return reports, delays[-1 - len(delays) // 100] if delays else 0.0


async def probe_all(
    settings: Settings, chosen: Sequence[ProbeTarget], requests: int, max_tokens: int
) -> list[ProbeReport]:
    """Probe replicas, a few at a time, each with one request at a time.

    Args:
        settings: timeouts and limits.
        requests: number of complete answers per replica.
        max_tokens: `max_tokens` of each of these answers.
    """
    slots = asyncio.Semaphore(_AT_ONCE_MAX)

    async def one(target: ProbeTarget) -> ProbeReport:
        async with slots:
            try:
                target = await _with_token(target)
            except (SourceFault, NotAToken) as fault:
                kind, name = target.replica.kind, target.replica.name
                return ProbeReport(target.model.name, name, kind, str(fault), 0, Times(), {}, None, ())
            prober = _Prober(settings, target, tasks)
            try:
                return await prober.report(requests, max_tokens)
            finally:
                prober.close()

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one(target)) for target in chosen]
    return [task.result() for task in running]


async def _with_token(target: ProbeTarget) -> ProbeTarget:
    """Return a replica with the token of its credential as its key.

    Raises:
        SourceFault: there is no token.
        NotAToken: the same.
    """
    source = source_of(target.replica)
    if source is None:
        return target
    token = await on_thread(fetch_of(source), "fetch token")
    return replace(target, replica=with_token(target.replica, target.model.name, token.value))


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
    """The gateway's HTTP/1.1 client with a recording; a `ProbeClient`."""

    recording: Recording | None = None

    def send(self, request: Request, sink: HttpSink) -> HttpStream:
        return super().send(request, sink if self.recording is None else Tap(self.recording, sink))

    def opened(self) -> None:
        super().opened()
        if self.recording is not None:
            self.recording.on_connected()


class _HttpxClient(HttpxClient):
    """The gateway's general client with a recording; a `ProbeClient`."""

    recording: Recording | None = None

    def send(self, request: Request, sink: HttpSink) -> HttpStream:
        return super().send(request, sink if self.recording is None else Tap(self.recording, sink))

    def opened(self) -> None:
        if self.recording is not None:
            self.recording.on_connected()


class _RequestForm(msgspec.Struct, frozen=True):
    """Form of the request; fields that a replica rejects are omitted or renamed."""

    usage: bool
    max_tokens: int
    tokens_key: str = "max_tokens"

    def call(self) -> Call:
        """Return the request, parsed like one of a caller."""
        body: dict[str, object] = {
            "model": "any",  # replaced by the endpoint
            "messages": [{"role": "user", "content": PROMPT}],
            self.tokens_key: self.max_tokens,
            "stream": True,
        }
        if self.usage:
            body["stream_options"] = {"include_usage": True}
        bounds = RequestBounds(n_max=1, max_tokens_max=self.max_tokens)
        return parse(Api.CHAT, json.dumps(body).encode(), (), bounds, frozenset()).call


class _Prober:
    """Probes one replica; `tasks` owns the connecting tasks."""

    def __init__(self, settings: Settings, target: ProbeTarget, tasks: asyncio.TaskGroup) -> None:
        self._target = target
        self._replica = replica = target.replica
        self._kind = facts_of(replica, target.model.name)
        self._path = urlsplit(replica.base_url).path
        origin = origin_of(replica, target.connect_s)
        self._client: _WireClient | _HttpxClient = (_HttpxClient if needs_httpx(origin) else _WireClient)(origin, tasks)
        self._headers = upstream_headers(replica, target.model.name)
        self._native = native_apis(replica, target.model.name)
        supported = protocols(
            replace(self._kind, supports_usage_option=False),  # the probe decides which requests ask for token counts
            self._native,
            ProtocolOptions(first_token=target.model.first_token),
        )
        name, bytes_max = target.model.name, settings.limits.event_max_bytes
        self._endpoint = endpoint_at(self._client, replica, supported, name, bytes_max)
        self._rejections: list[Quirk] = []

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    async def report(self, requests: int, max_tokens: int) -> ProbeReport:
        """Request complete answers until one fails; if none fails, run the cancel test."""
        form = _RequestForm(self._kind.supports_usage_option, max_tokens)
        recordings: list[Recording] = []
        for number in range(requests):
            without_usage = requests > 1 and number == requests - 1  # are token counts sent anyway?
            recording, form = await self._ask(replace(form, usage=form.usage and not without_usage))
            recordings.append(recording)
            if recording.error is not None:
                break
        last = recordings[-1]
        streams = sum(recording.error is None for recording in recordings)
        times = times_of(recordings)
        cancel_test, signs = None, list[SignTest]()
        if last.error is None:
            for api in sign_apis(self._target):
                answer = await record(self._client, self._endpoint, sign_call(api, max_tokens))
                signs.append(sign_test(api, answer))
            long_form = replace(form, max_tokens=cancel_test_tokens(self._target, max_tokens))
            cancel_test = await self._cancel_test(long_form)
        clean = partial(cleaned, secrets=self._secrets())
        return ProbeReport(
            model=self._target.model.name,
            replica=self._replica.name,
            kind=self._replica.kind,
            error=None if last.error is None else clean(await self._explain(last.error, max_tokens)),
            streams=streams,
            times=times,
            limits={name: clean(value) for name, value in limits_of(last).items()},
            cancel=cancel_test and replace(cancel_test, text=clean(cancel_test.text)),
            quirks=[replace(each, text=clean(each.text)) for each in self._quirks(recordings, streams)],
            signs=[replace(each, error=each.error and clean(each.error)) for each in signs],
        )

    def _quirks(self, recordings: Sequence[Recording], streams: int) -> list[Quirk]:
        """Return the quirks; rejected fields count only if requests without them succeeded."""
        found = [*(self._rejections if streams else ()), *quirks_of(recordings)]
        return found if Api.CHAT in self._native else [each for each in found if each.name not in OF_CHAT]

    async def _ask(self, form: _RequestForm) -> tuple[Recording, _RequestForm]:
        """Send a request, in other forms if it is rejected; return the recording and the last form."""
        recording = await record(self._client, self._endpoint, form.call())
        other = self._other_form(form, recording.error)
        if other is None:
            return recording, form
        return await self._ask(other)

    def _other_form(self, form: _RequestForm, error: UpstreamError | None) -> _RequestForm | None:
        """Return another form if the replica rejected this one, None otherwise; each field is changed once."""
        if error is None:
            return None
        if form.usage and is_stream_refused(error):
            self._rejections.append(
                Quirk("stream_options_refused", "`stream_options` is rejected, so there are no token counts")
            )
            return replace(form, usage=False)
        names = f"{error.param} {error.message}"
        if error.status == 400 and form.tokens_key == "max_tokens" and "max_completion_tokens" in names:
            self._rejections.append(
                Quirk("max_tokens_refused", "`max_tokens` is rejected, `max_completion_tokens` is accepted")
            )
            return replace(form, tokens_key="max_completion_tokens")
        return None

    async def _cancel_test(self, form: _RequestForm) -> CancelTest:
        counter = COUNTERS.get(self._replica.kind)
        path = self._path.removesuffix("/v1")

        async def count() -> float | None:
            self._client.recording = None
            document = await fetch(self._client, path + counter.path, self._headers) if counter else None
            return counter.read(document) if counter and document is not None else None

        start = partial(begin, self._client, self._endpoint, form.call())
        return await cancel(start, count if counter else None, self._no_count(counter))

    def _no_count(self, counter: TokenCounter | None) -> str:
        if counter is not None:
            needs = f" (start it with {counter.needs})" if counter.needs else ""
            return f"GET {counter.path} does not report the number of running requests{needs}"
        unseen = "the effect on the replica cannot be observed"
        configured = self._replica.cancel_stops_billing
        if configured is not None:
            return f"{unseen}; `cancel_stops_billing: {str(configured).lower()}` is configured"
        return unseen if self._kind.own_engine else f"{unseen}; {_BILLING[self._kind.cancel_stops_billing]}"

    async def _explain(self, error: UpstreamError, max_tokens: int) -> str:
        """Return the failure, with a correction if one is known."""
        text = error.message if error.status is None else f"status {error.status}: {error.message}"
        if isinstance(error, ConnectError):
            return f"{text}; {self._connecting(text)}"
        if isinstance(error, ConnectionCut) and error.status is None and self._replica.base_url.startswith("http:"):
            return f"{text}; if the server needs TLS, write https:// in base_url"
        if error.status in (401, 403):
            return f"{text}; {'set api_key' if self._replica.api_key is None else 'check api_key'}"
        if error.status == 404 and self._kind.place:
            return f"{text}; check that {self._replica.kind} serves `model` at {self._replica.base_url}"
        if error.status == 404:
            return f"{text}; {await self._models()}"
        if error.label == "empty":
            return f"{text}; if the model reasons first, try --max-tokens {max(256, max_tokens)} or more"
        return text

    def _connecting(self, text: str) -> str:
        """Return advice for a connection that was not made."""
        if "CERTIFICATE" in text:
            return "write the file of authorities to trust into connection.ca_file, or check base_url"
        if "WRONG_VERSION_NUMBER" in text:
            return "the server answers without TLS: write http:// in base_url"
        return f"check that the replica is running at {self._replica.base_url}"

    async def _models(self) -> str:
        """Return advice from the list of the models that the replica serves."""
        document = await fetch(self._client, f"{self._path}/models", self._headers)
        try:
            names = [str(entry["id"]) for entry in json.loads(document or b"")["data"]]
        except (ValueError, LookupError, TypeError):
            return f"{self._replica.base_url}/models lists no models either; check base_url"
        listed = ", ".join(names[:_MODELS_LISTED_MAX]) or "no model"
        return f"the replica lists {listed}; write one of them as its `model`"

    def _secrets(self) -> list[str]:
        """Return texts that must not be shown; short header values are no secrets, and would match other text."""
        keys = [] if self._replica.api_key is None else [self._replica.api_key]
        values = [header.get_secret_value() for header in self._replica.headers.values()]
        return [*(key.get_secret_value() for key in keys), *(value for value in values if len(value) >= _SECRET_MIN)]
