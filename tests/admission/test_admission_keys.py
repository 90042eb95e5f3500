"""Limits of keys at the admission of requests."""

import asyncio

import pytest
from msgspec.structs import replace

from admission_house import DONE, FOREVER_S, House
from gateway.errors import OverKeyLimit
from gateway.events import RequestEnded
from running import run_virtual


def test_a_key_over_its_limit_is_told_so() -> None:
    """A 429 with the key's own numbers; it takes neither a slot nor a place."""

    async def main() -> None:
        house = House(requests_per_min=2, tokens_per_min=1_000)
        first = house.ask(key="limited")
        assert first.place is not None
        assert dict(first.place.headers) == {
            b"x-ratelimit-limit-requests": b"2",
            b"x-ratelimit-remaining-requests": b"1",
            b"x-ratelimit-reset-requests": b"30s",
            b"x-ratelimit-limit-tokens": b"1000",
            b"x-ratelimit-remaining-tokens": b"800",
            b"x-ratelimit-reset-tokens": b"12s",
        }
        house.ask(key="limited")
        refused = house.ask(key="limited")
        assert isinstance(refused.error, OverKeyLimit)
        headers = dict(refused.error.headers())
        assert (headers[b"retry-after"], headers[b"x-ratelimit-remaining-requests"]) == (b"30", b"0")
        assert (house.fair_queue.in_flight, house.fair_queue.waiting, house.account.in_flight) == (1, 1, 2)
        await asyncio.sleep(FOREVER_S)
        assert house.account.in_flight == 0

    run_virtual(main())


@pytest.mark.parametrize(
    ("ended", "left"),
    [
        (DONE, 985),  # as reported
        (replace(DONE, usage=None, events=7), 893),  # the estimated prompt, and what went out
        (replace(DONE, usage=None, events=0), 1_000),  # nothing came
    ],
)
def test_tokens_are_settled(ended: RequestEnded, left: int) -> None:
    """A key is charged the reported usage, else an estimate; the request itself stays counted."""

    async def main() -> None:
        house = House(requests_per_min=2, tokens_per_min=1_000)
        work = house.ask(FOREVER_S, key="limited")
        assert work.runtime is not None
        work.runtime.emit(ended)
        requests, tokens = house.account.status(house.loop.time())
        assert (requests.remaining, tokens.remaining) == (1, left)

    run_virtual(main())


def test_who_was_not_served_is_charged_nothing() -> None:
    """A wait in vain gives the key's tokens and its request back."""

    async def main() -> None:
        house = House(requests_per_min=2, tokens_per_min=1_000, places=1)
        house.ask(FOREVER_S)
        waits, refused = house.ask(key="limited"), house.ask(key="limited")
        assert refused.error is not None
        await asyncio.sleep(5.0)
        assert waits.error is not None
        assert [status.remaining for status in house.account.status(5.0)] == [2, 1_000]

    run_virtual(main())
