"""Streams that break at a primary and are carried on by its fallback, in four APIs: a table of outcomes.

A row is an API, a form of the answer, the APIs of both replicas, a fault after a number of events, and the way in which
the fallback answers. All settings but `stall_thinking` have their defaults. The gateway's race, protocols and
translations read the bytes of simulated replicas in virtual time, and each answer is compared with the answer without
the fault. `scripts/acceptance outcomes` plays each row once; this program, `--count` times. Units: seconds.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import product, repeat
from multiprocessing import get_context
from typing import Final, Literal, NamedTuple, get_args

from client_reads import Malformed, read_document, read_stream
from defaults import default_hedging, default_timeouts
from gateway.api.dialects.base import ERROR_EVENT
from gateway.errors import GatewayError
from gateway.events import RequestEnded
from gateway.race.context import Caller, Model, RecoveryMode
from gateway.race.race import Race
from gateway.server.public_routes import client_apis
from gateway.simulated.profile import parse_profile
from gateway.simulated.replica import SimulatedReplica
from providers.protocols import RECOVERERS, ProtocolOptions, continuing, prefixes, protocols
from providers.response_stream import Bounds
from providers.upstream import HttpEndpoint
from recovering import Read
from running import run_virtual
from scripted import Hearing, RecordingClient
from simulated_http import SimulatedHttp
from ttft_gateway.apis.base import Api, Call
from ttft_gateway.apis.catalog import CATALOG
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.pool.pool import Pool
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.requests.request import parse
from ttft_gateway.routing.replicas import Replica

Form = Literal["text", "tool", "thinking", "answer"]
"""The part of the answer that breaks: text, a tool's arguments, thinking before text, or text after thinking."""

Backup = Literal["fixed", "fixed, no prefix", "sampled, equal", "sampled, prefix", "sampled, other"]
"""The fallback: it gives the same text at temperature 0, and takes a prefix or not; or the answer is sampled, and it
gives the same text without a prefix, another text after a prefix, or another text."""

Fault = Literal["cut", "stall", "flap"]
"""The fault of the primary: it cuts every stream, stops sending in every stream, or cuts this stream only."""

Wiring = Literal["native", "translated", "mixed"]
"""The replicas have the client's API, or another one, or the fallback alone has another one."""

AFTER: Final = (1, 15, 200)  # events
_TOKENS: Final = 220  # of a text
_SHORT: Final = 20  # tokens of a text after thinking that breaks
_THINKING: Final[Mapping[Form, int]] = {"text": 0, "tool": 0, "thinking": 220, "answer": 3}
_PROPERTIES: Final = {f"property_{number:03}": {"type": "string"} for number in range(70)}
_SCHEMA: Final = {"type": "object", "properties": _PROPERTIES}  # arguments of some 270 pieces
_APIS: Final = (Api.CHAT, Api.COMPLETIONS, Api.MESSAGES, Api.RESPONSES)
_NATIVE: Final = ("vllm", frozenset(_APIS))
_TRANSLATED: Final[Mapping[Api, tuple[str, frozenset[Api]]]] = {
    Api.CHAT: ("anthropic", frozenset({Api.MESSAGES})),
    Api.RESPONSES: ("anthropic", frozenset({Api.MESSAGES})),  # by way of chat completions
    Api.MESSAGES: ("vllm", frozenset({Api.CHAT})),
}
_CHAT_TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": _SCHEMA}}
_TOOLS: Final[Mapping[Api, Mapping[str, object]]] = {
    Api.CHAT: {"tools": [_CHAT_TOOL], "tool_choice": "required"},
    Api.RESPONSES: {
        "tools": [{"type": "function", "name": "f", "parameters": _SCHEMA, "strict": False}],
        "tool_choice": "required",
    },
    Api.MESSAGES: {"tools": [{"name": "f", "input_schema": _SCHEMA}], "tool_choice": {"type": "any"}},
}
_STALL_THINKING_S: Final = 60.0  # the default is the whole of `total`
_OFF: Final = default_hedging(policy=Policy.OFF)
_CLIENT_APIS: Final = client_apis()


class Row(NamedTuple):
    """One row of the table: see the types of its values.

    Attributes:
        api: API of the client.
        stream: the client asks for a stream.
        after: events after which the fault comes.
    """

    api: Api
    stream: bool
    form: Form
    wiring: Wiring
    backup: Backup
    fault: Fault
    after: int

    @property
    def breaks_thinking(self) -> bool:
        """The fault comes before the text."""
        return self.form in ("thinking", "answer") and self.after < _THINKING[self.form]

    @property
    def expected(self) -> str:
        """The result: `whole` equals the answer without the fault, `continued` begins like it, `other` is a new one."""
        is_sampled = self.backup.startswith("sampled")
        if not self.stream and self.fault == "flap" and is_sampled and self.form != "tool":
            return "other"  # the primary answers again
        if self.api is Api.COMPLETIONS and self.stream and is_sampled:  # any prompt may be continued
            if self.backup == "sampled, equal" and 2 * self.after > _TOKENS:
                return "error"  # it begins anew, and has too few tokens left for anything that the client lacks
            return "continued"
        if self.backup not in ("sampled, prefix", "sampled, other") or self.form == "tool":  # which follows its schema
            return "whole"
        if not self.stream:
            return "other"
        if self.breaks_thinking:
            return "restarted"
        return "continued" if self.backup == "sampled, prefix" and self.form == "text" else "error"


@dataclass
class Played:
    """One answer of a row.

    Attributes:
        result: the result; `Row.expected` has the right one.
        later_s: time from the detection of the break to the first new event, or to the error.
        got: the client's view, or the reason for which no client can read the answer.
        recoveries: kinds and results of the recoveries.
    """

    result: str
    later_s: float
    got: Read | str
    recoveries: tuple[str, ...]


def rows(
    forms: Sequence[Form] = get_args(Form), faults: Sequence[Fault] = get_args(Fault), after: Sequence[int] = AFTER
) -> Iterator[Row]:
    """Yield the rows of the table."""
    for api, form, wiring, backup, fault, events in product(
        _APIS, forms, get_args(Wiring), get_args(Backup), faults, after
    ):
        if api is not Api.COMPLETIONS or (form == "text" and wiring == "native"):  # nothing is translated to it
            for stream in (True, False):
                yield Row(api, stream, form, wiring, backup, fault, events)


def play(row: Row, number: int) -> Played:
    """Read one answer without the fault and one with it; `number` decides the prompt, and what is sampled."""
    return run_virtual(_play(row, number))


class _Client(RecordingClient):
    """A client that gets errors and bodies in the form of its API."""

    report: RequestEnded

    def __init__(self, call: Call) -> None:
        super().__init__(call.streaming)
        self.written_s: list[float] = []  # times of events and of the end
        self._call = call
        self._api = _CLIENT_APIS[call.api]
        self._terminator = ERROR_EVENT if self._api.terminator is None else self._api.terminator("req_1")

    def write(self, raw: bytes) -> None:
        if self._terminator.note is not None:
            self._terminator.note(raw)
        if self.streaming:
            self.written_s.append(asyncio.get_running_loop().time())
        super().write(raw)

    def finish(self) -> None:
        self.written_s.append(asyncio.get_running_loop().time())
        if not self.streaming:
            assert self._api.assembler is not None
            assembler = self._api.assembler(self._call)
            assembler.add(self.got)
            self.got = assembler.body()
        super().finish()

    def fail(self, error: GatewayError) -> None:
        self.written_s.append(asyncio.get_running_loop().time())
        if self.streaming:
            self.got += self._terminator.error(error)
        super().fail(error)


async def _play(row: Row, number: int) -> Played:
    whole, _ = await _ask(row, number, is_faulty=False)
    got, client = await _ask(row, number, is_faulty=True)
    report = client.report
    broken_s = report.at_s - report.total_s + (report.attempts[0].end_s or 0.0)
    later_s = min(at_s for at_s in client.written_s if at_s >= broken_s) - broken_s
    result = _result(row, got, whole) if len(report.attempts) > 1 else "not broken"
    named = tuple(f"{each.kind.value} {each.result.value}" for each in report.recoveries)
    return Played(result, later_s, got, named)


async def _ask(row: Row, number: int, *, is_faulty: bool) -> tuple[Read | str, _Client]:
    """Send the request of a row; return the client's view and the client, with the report."""
    loop = asyncio.get_running_loop()
    translated = _TRANSLATED.get(row.api, _NATIVE)
    wired = {"native": (_NATIVE, _NATIVE), "translated": (translated, translated), "mixed": (_NATIVE, translated)}
    draws_alike = row.backup not in ("sampled, prefix", "sampled, other")
    pools = []
    for name, (kind, apis) in zip("ab", wired[row.wiring], strict=True):
        draws = random.Random(number if draws_alike or name == "a" else -1 - number)
        simulated = SimulatedReplica(parse_profile(_profile(row, name, is_faulty=is_faulty)), draws, 0, name)
        pools.append(Pool(f"m/{name}", [_replica(name, kind, apis, SimulatedHttp(simulated))], _OFF))
    body = json.dumps(_body(row, number), separators=(",", ":")).encode()  # translations write the same bytes
    inbound = parse(row.api, body, [], NumberLimits(16, 100_000), frozenset())
    client, heard = _Client(inbound.call), Hearing(loop)
    timeouts = default_timeouts(stall_thinking_s=_STALL_THINKING_S)
    model = Model("m", pools, timeouts, recovery=RecoveryMode.AUTO, recoverers=RECOVERERS)
    facts, caller = RequestFacts(prompt_tokens=10), Caller("req_1", "key", loop.time())
    Race(model, inbound.call, facts, client, caller, heard.runtime).start()
    client.report, _ = await heard.over()
    return _view(row, client), client


def _replica(name: str, kind_name: str, apis: frozenset[Api], client: SimulatedHttp) -> Replica:
    """Return a replica as the gateway builds it from its settings."""
    kind, options = CATALOG[kind_name], ProtocolOptions()
    supported = protocols(kind, apis, options)
    continued = continuing(kind, {api: supported[api] for api in apis}, options)
    endpoint = HttpEndpoint(client, supported, "/v1", [(b"host", b"h")], "m", Bounds())
    endpoint.continue_with(continued)
    return Replica(name, endpoint, prefills=prefixes(kind, continued), answers_as="m")


def _profile(row: Row, name: str, *, is_faulty: bool) -> dict[str, object]:
    faults = {
        "cut": f"cut_rst:{row.after} always",
        "stall": f"stall:{row.after},3600s always",
        "flap": f"cut_rst:{row.after} first 1",
    }
    return {
        "ttft": "20ms",
        "gap": "10ms",
        "tokens": _tokens(row),
        "reasoning_tokens": _THINKING[row.form],
        "per_event": 1 if name == "a" else 3,
        "continues": row.backup in ("fixed", "sampled, prefix"),
        "faults": [faults[row.fault]] if is_faulty and name == "a" else [],
    }


def _body(row: Row, number: int) -> dict[str, object]:
    prompt = f"hello {number}"
    bound = "max_output_tokens" if row.api is Api.RESPONSES else "max_tokens"
    body: dict[str, object] = {"model": "m", "stream": row.stream, bound: _tokens(row)}
    if row.api is Api.COMPLETIONS:
        body["prompt"] = prompt
    elif row.api is Api.RESPONSES:
        body |= {"input": prompt, "store": False}
    else:
        body["messages"] = [{"role": "user", "content": prompt}]
    if row.form == "tool":
        body |= _TOOLS[row.api]
    return body if row.backup.startswith("sampled") else {**body, "temperature": 0}


def _tokens(row: Row) -> int:
    return _SHORT if row.form == "thinking" else _TOKENS


def _view(row: Row, client: _Client) -> Read | str:
    """Return what a client reads, or the reason for which no client can read the answer."""
    if not row.stream and client.error is not None:
        return Read(error=client.error.code)
    try:
        return (read_stream if row.stream else read_document)(row.api, client.got)
    except Malformed as error:
        return f"malformed: {error}"


def _result(row: Row, got: Read | str, whole: Read | str) -> str:
    """Return the result of one answer, by the answer without a fault."""
    if isinstance(got, str) or isinstance(whole, str):
        return str(got if isinstance(got, str) else whole)
    texts, right = _texts(got), _texts(whole)
    if got.error is not None:
        begins = all(right.get(place, "").startswith(text) for place, text in texts.items())
        return "error" if begins and not got.dones and not got.finishes else "mixed"
    finishes_once = bool(got.finishes) and all(len(each) == 1 for each in got.finishes.values())
    if got.dones != 1 or len(got.heads) != 1 or set(got.roles.values()) > {1} or not finishes_once:
        return "doubled"
    if texts == right and got.finishes == whole.finishes:
        return "whole"
    if [*texts] != [*right] or got.finishes != whole.finishes:
        return "mixed"
    if not row.stream:
        sizes = [[len(text.split()) for text in each.values()] for each in (texts, right)]
        return "other" if sizes[0] == sizes[1] else "mixed"
    place = "0.reasoning" if row.breaks_thinking else "0.content"
    sent = "".join(f"{word} " for word in right[place].split()[: row.after])
    rest = texts[place].removeprefix(sent).lstrip("\n") if texts[place].startswith(sent) else ""
    if row.breaks_thinking:
        is_whole = len(rest.split()) == _THINKING[row.form] and len(texts["0.content"].split()) == _tokens(row)
        return "restarted" if is_whole else "mixed"
    return "continued" if rest.strip() else "mixed"


def _texts(read: Read) -> dict[str, str]:
    """Return the texts of an answer without the ids of calls; translations write whole arguments anew."""
    texts = {place: text for place, text in read.texts.items() if not place.endswith(".id")}
    for place, text in texts.items():
        if place.endswith(".arguments"):
            with contextlib.suppress(ValueError):
                texts[place] = json.dumps(json.loads(text))
    return texts


@dataclass
class Tally:
    """Results of many answers.

    Attributes:
        right: number of answers with the expected result.
        wrong: number and description of the others.
        later_s: longest time from the detection of a break to the first new event, or to the error.
    """

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    later_s: float = 0.0


def tally(table: Iterable[Row], numbers: Iterable[int]) -> Tally:
    """Play rows with each of these numbers."""
    result = Tally()
    for row, number in product(table, tuple(numbers)):
        played = play(row, number)
        result.later_s = max(result.later_s, played.later_s)
        if played.result == row.expected:
            result.right += 1
        else:
            result.wrong.append(f"{row}, {number}: {played.result} instead of {row.expected}; {played.recoveries}")
    return result


def _of_group(group: tuple[Api, Form, Backup], count: int) -> tuple[str, Tally]:
    api, form, backup = group
    table = [row for row in rows([form]) if (row.api, row.backup) == (api, backup)]
    results = " or ".join(sorted({row.expected for row in table}))
    return f"{api.value}, {form}, {backup}: {results}", tally(table, range(count))


def main(argv: Sequence[str] | None = None) -> int:
    """Play the table in several processes; return the exit code."""
    parser = argparse.ArgumentParser(prog="recovery_table.py", description="Plays streams that break at a primary.")
    parser.add_argument("--count", type=int, default=100, help="answers for each row; 100")
    parser.add_argument("--jobs", type=int, default=2, help="processes; 2")
    given = parser.parse_args(argv)
    groups = dict.fromkeys((row.api, row.form, row.backup) for row in rows())
    sys.stdout.write(
        "| client's API, form, fallback: result | right | wrong | longest wait after the break |\n|---|---|---|---|\n"
    )
    is_wrong = False
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as processes:
        for name, seen in processes.map(_of_group, groups, repeat(given.count)):
            is_wrong = is_wrong or bool(seen.wrong)
            sys.stdout.write(f"| {name} | {seen.right} | {len(seen.wrong)} | {seen.later_s:.1f} s |\n")
            sys.stderr.writelines(f"{line}\n" for line in seen.wrong[:3])
    return 1 if is_wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
