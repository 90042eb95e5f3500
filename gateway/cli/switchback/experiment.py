"""Turns the hedging of running gateways on and off at random, block by block, and restores the state it found.

Owns the requests to a gateway, the order of the steps, and what happens after errors; time is the loop's.
A switch that another operator has changed is left alone: the experiment ends.

Units: seconds.
"""

import asyncio
import http.client
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import msgspec

from gateway.cli.admin_client import ask_admin
from gateway.proof.blocks import BlockReport, ModelCounts, added
from gateway.proof.switchback import Pair

_TRIES: Final = 4
_PAUSE_S: Final = 2.0  # before another try
_BEFORE_SHARE: Final = 0.25  # of the washout is before the switch: requests that wait then are decided by both states

T = TypeVar("T")


class ExperimentFault(Exception):
    """The experiment cannot continue; the message has the form of an error for users."""


class _Switched(msgspec.Struct):
    """The document of `GET` and `POST /admin/hedging`; `of` is 0 without workers."""

    models: dict[str, bool]
    reached: int = 0
    of: int = 0


class _Blocks(msgspec.Struct):
    """The document of `POST /admin/blocks`."""

    blocks: list[BlockReport]


class AdminGateway:
    """A gateway, by its admin address.

    Attributes:
        address: its admin address.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    async def switches(self) -> Mapping[str, bool]:
        """Return the state of the switch of each model."""
        return msgspec.json.decode(await self._ask("/admin/hedging"), type=_Switched).models

    async def switch(self, model: str, *, on: bool) -> None:
        """Set the switch of a model."""
        body = json.dumps({"on": on, "model": model}).encode()
        switched = msgspec.json.decode(await self._ask("/admin/hedging", body), type=_Switched)
        if switched.reached < switched.of:
            raise ValueError(f"{switched.reached} of {switched.of} workers were switched")

    async def begin(self, block: str) -> Sequence[BlockReport]:
        """Begin a block, unless it has begun; return the counts of the last ones."""
        body = json.dumps({"block": block}).encode()
        return msgspec.json.decode(await self._ask("/admin/blocks", body), type=_Blocks).blocks

    async def _ask(self, path: str, body: bytes | None = None) -> bytes:
        try:
            return await asyncio.to_thread(ask_admin, self.address, path, body)
        except http.client.HTTPException as error:
            raise OSError(f"no HTTP: {type(error).__name__}") from error


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """An experiment.

    Attributes:
        name: name of the experiment, which is part of the names of its blocks.
        order: state of the switch in each block.
        length_s: length of a block.
        washout_s: time in it around the switch; its requests are not counted.
        model: model that is switched; None for all.
    """

    name: str
    order: Sequence[bool]
    length_s: float
    washout_s: float
    model: str | None = None


@dataclass(slots=True)
class Experiment:
    """One experiment.

    Attributes:
        plan: the plan.
        gateways: all gateways of the models.
        done: number of complete blocks.
        fault: reason of an early end; None for a complete run.
        unrestored: switches that could not be restored, or were left alone, as text.
    """

    plan: BlockPlan
    gateways: Sequence[AdminGateway]
    done: int = 0
    fault: str | None = None
    unrestored: list[str] = field(default_factory=list)
    _found: list[dict[str, bool]] = field(default_factory=list)
    _ours: list[dict[str, bool]] = field(default_factory=list)
    _counts: dict[tuple[int, str], Mapping[str, ModelCounts]] = field(default_factory=dict)

    async def run(self) -> None:
        """Run all blocks, and restore the switches; a fault is stored, a cancellation is raised after that."""
        try:
            await self._find()
            try:
                for number, on in enumerate(self.plan.order):
                    await self._block(number, on=on)
                await self._mark("end")
                await asyncio.sleep(self.plan.washout_s)  # for answers under way
                await self._mark("end")
            finally:
                await self._restore()
        except ExperimentFault as fault:
            self.fault = str(fault)

    def pairs(self) -> dict[str, list[Pair]]:
        """Return the counts of the complete pairs of blocks, by model."""
        found: dict[str, list[Pair]] = {}
        for first in range(0, self.done - 1, 2):
            blocks = [self._block_counts(number) for number in (first, first + 1)]
            off, on = blocks[self.plan.order[first]], blocks[not self.plan.order[first]]
            for model in off.keys() & on.keys():
                found.setdefault(model, []).append(Pair(off[model], on[model]))
        return found

    def _block_counts(self, number: int) -> dict[str, ModelCounts]:
        each = [self._counts.get((index, f"{self.plan.name}-{number}"), {}) for index in range(len(self.gateways))]
        models = {model for counts in each for model in counts}
        sums = {model: added(counts[model] for counts in each if model in counts) for model in models}
        return {model: counts for model, counts in sums.items() if counts is not None}

    # steps

    async def _find(self) -> None:
        """Note the state of each switch."""
        for gateway in self.gateways:
            found = dict(await _tried(gateway, gateway.switches, 1))
            model = self.plan.model
            if model is not None:
                if model not in found:
                    raise ExperimentFault(
                        f"model {model} is unknown at {gateway.address}; write one of {', '.join(found)}"
                    )
                found = {model: found[model]}
            self._found.append(found)
        self._ours = [dict(found) for found in self._found]

    async def _block(self, number: int, *, on: bool) -> None:
        plan = self.plan
        progress = f"block {number + 1} of {len(plan.order)}: hedging {'on' if on else 'off'}"
        print(progress, file=sys.stderr, flush=True)
        await self._mark(f"before-{number}")
        await asyncio.sleep(_BEFORE_SHARE * plan.washout_s)
        await self._check()
        for index, gateway in enumerate(self.gateways):
            await self._switch(index, gateway, dict.fromkeys(self._ours[index], on))
        await asyncio.sleep((1 - _BEFORE_SHARE) * plan.washout_s)
        await self._mark(str(number))
        await asyncio.sleep(plan.length_s - plan.washout_s)
        await self._check()
        await self._mark(str(number))  # for its counts so far
        self.done = number + 1

    async def _switch(self, index: int, gateway: AdminGateway, states: Mapping[str, bool]) -> None:
        for model, on in states.items():
            if self._ours[index][model] is not on:
                self._ours[index][model] = on  # also if the answer is lost
                await _tried(gateway, partial(gateway.switch, model, on=on))

    async def _mark(self, block: str) -> None:
        """Begin a block at every gateway, and store the counts of the last ones."""
        for index, gateway in enumerate(self.gateways):
            for report in await _tried(gateway, partial(gateway.begin, f"{self.plan.name}-{block}")):
                old = self._counts.get((index, report.block), {})
                if _requests(report.models) >= _requests(old):  # a process that was replaced has lost its counts
                    self._counts[index, report.block] = report.models

    async def _check(self) -> None:
        """Raise if a switch is not in the state that was set here."""
        for index, gateway in enumerate(self.gateways):
            found = await _tried(gateway, gateway.switches)
            for model, on in self._ours[index].items():
                if found.get(model) is not on:
                    state = "missing" if model not in found else "on" if found[model] else "off"
                    raise ExperimentFault(
                        f"the switch of {model} at {gateway.address} is {state}, which this command did not set; "
                        "it is left so, run the command again when nothing else switches hedging"
                    )

    async def _restore(self) -> None:
        """Set every switch to the state that was found; one that another operator has changed stays."""
        for index, gateway in enumerate(self.gateways):
            for model, on in self._found[index].items():
                try:
                    state = (await _tried(gateway, gateway.switches)).get(model)
                    if state is self._ours[index][model]:
                        await _tried(gateway, partial(gateway.switch, model, on=on))
                    elif state is not on:
                        self.unrestored.append(f"{model} at {gateway.address}: changed by another operator")
                except ExperimentFault as fault:
                    self.unrestored.append(f"{model} at {gateway.address}: was {'on' if on else 'off'}; {fault}")


def _requests(models: Mapping[str, ModelCounts]) -> int:
    return sum(counts.requests for counts in models.values())


async def _tried(gateway: AdminGateway, ask: Callable[[], Awaitable[T]], tries: int = _TRIES) -> T:
    """Return the answer of a gateway, after at most a few tries."""
    for number in range(1, tries + 1):
        try:
            return await ask()
        except (OSError, ValueError) as error:
            if number == tries:
                raise ExperimentFault(
                    f"{gateway.address} does not answer ({error}); check --admin and the gateway"
                ) from error
        await asyncio.sleep(_PAUSE_S)
    raise AssertionError
