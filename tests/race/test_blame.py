"""Blame for a 4xx needs evidence, and answers acquit, in virtual time."""

import asyncio

import pytest

from error_forms import DEAD, MISTAKES, Form
from scripted import Step, bare_status, status
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.routing.replicas import COOL_DOWN_S_MAX, BreakerState
from two_callers import House, Picky, Rejects, play, rejected

UNKNOWN = MISTAKES["anthropic-file"]  # a dead key could be said in these words, too
AGREED = [name for name, form in MISTAKES.items() if form.status not in (401, 402)]


def mistakes_of(form: Form) -> Rejects:
    """Reject the requests that contain "bad"."""
    return lambda body: rejected(form) if b"bad" in body else None


def everything(form: Form) -> Rejects:
    """Reject every request."""
    return lambda _body: rejected(form)


@pytest.mark.parametrize("form", MISTAKES.values(), ids=MISTAKES)
def test_the_mistakes_of_one_caller_move_nobody_else(form: Form) -> None:
    """Two mistakes a second of one caller open no breaker, and 0 of 200 requests of another one go to the fallback."""
    served: list[str | None] = []

    async def scene(house: House) -> None:
        async def mistaken() -> None:
            for number in range(70):  # while the other one is served
                await house.ask("a", b"bad %d" % number)
                await asyncio.sleep(0.5)

        async def careful() -> None:
            for _ in range(200):
                served.append((await house.ask("b")).report.winner)
                await asyncio.sleep(0.15)

        await asyncio.gather(mistaken(), careful())

    house = play(scene, [Picky(mistakes_of(form)), Picky(mistakes_of(form))], [Picky()])
    assert set(served) <= {"a", "b"}
    assert house.changes == []


@pytest.mark.parametrize("name", AGREED)
def test_a_mistake_is_answered_in_the_providers_words(name: str) -> None:
    """All replicas reject it: the caller gets that error, not 502, and the fallback is not asked."""
    form = MISTAKES[name]

    async def scene(house: House) -> None:
        told = await house.ask("a", b"bad")
        assert told.error is not None
        assert told.error.status == form.status
        assert told.error.code != "upstream_misconfigured"

    fallback = Picky()
    play(scene, [Picky(mistakes_of(form)), Picky(mistakes_of(form))], [fallback])
    assert fallback.asked == 0


@pytest.mark.parametrize("form", DEAD.values(), ids=DEAD)
def test_a_dead_account_beside_a_healthy_one(form: Form) -> None:
    """No caller gets an error; the replica is out and named within three requests, also by identical ones."""
    dead = Picky(everything(form))

    async def scene(house: House) -> None:
        named = []
        for _ in range(8):
            told = await house.ask("a", b"the same")
            assert told.error is None
            named.append(told.report.attempts[0].outcome)
        count = 1 if form.at_once else 3
        assert named[count - 1] is Outcome.MISCONFIGURED
        assert dead.asked == count

    house = play(scene, [dead, Picky()])
    assert house.changes == [("a", "open")]


@pytest.mark.parametrize("form", DEAD.values(), ids=DEAD)
def test_a_dead_account_alone_leaves_its_callers_to_the_fallback(form: Form) -> None:
    """Every request is answered by the fallback; the replica gets at most three of the first ten."""
    dead = Picky(everything(form))

    async def scene(house: House) -> None:
        for number in range(10):
            told = await house.ask(f"key {number}")
            assert told.error is None
            assert told.report.winner == "b"

    play(scene, [dead], [Picky()])
    assert dead.asked <= 3


@pytest.mark.parametrize("form", DEAD.values(), ids=DEAD)
def test_a_dead_account_without_another_is_the_gateways_fault(form: Form) -> None:
    """The caller gets 502 `upstream_misconfigured`, whatever the words."""

    async def scene(house: House) -> None:
        for _ in range(4):
            told = await house.ask("a")
            assert told.error is not None
            assert (told.error.status, told.error.code) == (502, "upstream_misconfigured")

    play(scene, [Picky(everything(form))])


def test_a_dead_key_in_unknown_words() -> None:
    """Two dead replicas cost three requests, then the fallback answers; an answer of one replica acquits both."""
    dead = [Picky(everything(UNKNOWN)), Picky(everything(UNKNOWN))]

    async def scene(house: House) -> None:
        told = [await house.ask("a") for _ in range(3)]
        assert [each.error and each.error.status for each in told] == [UNKNOWN.status] * 3
        assert [each.outcome for each in told[2].report.attempts] == [Outcome.MISCONFIGURED] * 2
        assert (await house.ask("a")).report.winner == "c"
        for replica in dead:
            replica.rejects = lambda _body: None
        assert (await house.ask("b")).report.winner == "a"
        await asyncio.sleep(0.001)
        a, b = (replica.breaker for replica in house.pools[0].replicas)
        assert (a.state, b.state) == (BreakerState.CLOSED, BreakerState.OPEN)
        assert b.allows(asyncio.get_running_loop().time())

    house = play(scene, dead, [Picky()])
    assert house.changes == [("a", "open"), ("b", "open"), ("a", "closed")]


def test_a_dead_pool_costs_three_callers_a_retry() -> None:
    """Where the requests of one caller have taken all replicas out, two more callers try them, and then no caller."""
    dead = Picky(everything(MISTAKES["a-key-of-its-own"]))
    asked = []

    async def scene(house: House) -> None:
        for _ in range(3):
            await house.ask("a")
        for key in "abcdea":
            assert (await house.ask(key)).report.winner == "b"
            asked.append(dead.asked - 3)

    play(scene, [dead], [Picky()])
    assert asked == [0, 1, 2, 2, 2, 2]


def test_an_idle_pool_that_was_judged_wrongly() -> None:
    """One caller's three mistakes take the pool out; another caller is served by it, not by the fallback."""
    fallback = Picky()

    async def scene(house: House) -> None:
        for number in range(3):
            await house.ask("a", b"bad %d" % number)
        assert house.changes == [("a", "open"), ("b", "open")]
        told = [await house.ask("b") for _ in range(20)]
        assert all(each.error is None for each in told)

    play(scene, [Picky(mistakes_of(UNKNOWN)), Picky(mistakes_of(UNKNOWN))], [fallback])
    assert fallback.asked == 0


def test_a_repeated_request_is_one() -> None:
    """An SDK that repeats its request opens no breaker, however often."""

    async def scene(house: House) -> None:
        for _ in range(20):
            told = await house.ask("a", b"bad")
            assert told.error is not None

    assert play(scene, [Picky(mistakes_of(UNKNOWN)), Picky(mistakes_of(UNKNOWN))]).changes == []


def test_a_burst_of_mistakes_is_judged_after_the_second_opinions() -> None:
    """Immediate mistakes count only when another replica has been asked, and its answers to others acquit both."""

    async def scene(house: House) -> None:
        for _ in range(2):
            await asyncio.gather(*(house.ask("a", b"bad %d" % number) for number in range(2)), house.ask("b"))
            await house.ask("b")

    assert play(scene, [Picky(mistakes_of(UNKNOWN)), Picky(mistakes_of(UNKNOWN))]).changes == []


def test_a_single_replica_that_works_is_believed() -> None:
    """A replica that has answered since its last rejection is believed; after a second one the fallback is asked."""
    fallback = Picky()

    async def scene(house: House) -> None:
        await house.ask("b")
        told = await house.ask("a", b"bad 1")
        assert told.error is not None
        assert told.error.status == UNKNOWN.status
        assert fallback.asked == 0
        assert (await house.ask("a", b"bad 2")).report.winner == "b"

    play(scene, [Picky(mistakes_of(UNKNOWN))], [fallback])


def test_a_third_replica_is_asked_while_none_is_known_to_work() -> None:
    """Two replicas with one dead key do not outvote the third one; four that agree cost no wait."""

    async def scene(house: House) -> None:
        assert (await house.ask("a")).report.winner == "c"

    play(scene, [Picky(everything(UNKNOWN)), Picky(everything(UNKNOWN)), Picky()])

    async def agreed(house: House) -> None:
        began_s = asyncio.get_running_loop().time()
        told = await house.ask("a")
        assert told.error is not None
        assert asyncio.get_running_loop().time() < began_s + 0.1

    play(agreed, [Picky(everything(UNKNOWN)) for _ in range(4)])


def test_a_page_of_a_firewall_follows_the_same_rule() -> None:
    """Three different requests without an answer in between take a replica out, and no fewer."""

    def page(_body: bytes) -> list[Step]:
        return bare_status(0.01, 403)

    async def scene(house: House) -> None:
        for number in range(2):
            await house.ask("a", b"bad %d" % number)
        assert house.changes == []
        await house.ask("b", b"bad 3")
        assert house.changes == [("a", "open")]

    play(scene, [Picky(page)])


# 429


def limited(message: str, kind: str | None = None, wait_s: float | None = 20.0) -> list[Step]:
    """A 429 in OpenAI's words."""
    steps = status(0.01, 429, "rate_limit_exceeded", wait_s)
    error = steps[0][1]
    assert isinstance(error, Exception)
    steps[0] = (0.01, type(error)(message, status=429, kind=kind, code="rate_limit_exceeded", retry_after_s=wait_s))
    return steps


def facts(tokens: float) -> RequestFacts:
    """The facts of a request of this size."""
    return RequestFacts(prompt_tokens=tokens, answer_tokens=10)


def test_a_request_above_the_whole_limit_makes_nobody_wait() -> None:
    """It is rejected in the provider's words, and others are served immediately."""
    text = "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389."

    def rejects(body: bytes) -> list[Step] | None:
        return limited(text, "tokens") if b"huge" in body else None

    async def scene(house: House) -> None:
        told = await house.ask("a", b"huge", facts(342_389.0))
        assert told.error is not None
        assert (told.error.status, told.error.message) == (429, text)
        assert (await house.ask("b", facts=facts(100.0))).error is None
        assert (await house.ask("b", facts=facts(300_000.0))).error is None

    play(scene, [Picky(rejects)], ledger=Ledger())


def test_a_large_request_makes_only_large_ones_wait() -> None:
    """After a 429 about tokens, requests of less than half the size are sent; any other 429 makes all wait."""
    text = "Rate limit reached on tokens per min (TPM): Limit 30000, Used 29000, Requested 8000."

    def rejects(body: bytes) -> list[Step] | None:
        return limited(text, "tokens") if b"huge" in body else None

    async def scene(house: House) -> None:
        assert (await house.ask("a", b"huge", facts(8_000.0))).error is not None
        assert (await house.ask("b", facts=facts(100.0))).error is None
        waits = (await house.ask("b", facts=facts(8_000.0))).error
        assert waits is not None
        assert (waits.status, waits.code) == (429, "upstream_rate_limited")
        assert (await house.ask("a", b"huge", facts(1_000.0))).error is not None  # less is left than was assumed
        assert (await house.ask("b", facts=facts(100.0))).error is None
        assert (await house.ask("b", facts=facts(900.0))).error is not None

    play(scene, [Picky(rejects)], ledger=Ledger())
    text = "Rate limit reached for requests per min (RPM)."

    async def requests(house: House) -> None:
        assert (await house.ask("a", b"huge", facts(8_000.0))).error is not None
        assert (await house.ask("b", facts=facts(100.0))).error is not None

    play(requests, [Picky(lambda body: limited(text, "requests") if b"huge" in body else None)], ledger=Ledger())


def test_no_caller_waits_for_longer_than_the_gateway() -> None:
    """A provider's Retry-After of a day becomes the 5 minutes after which the gateway sends again."""

    async def scene(house: House) -> None:
        told = (await house.ask("a")).error
        assert told is not None
        assert told.retry_after_s == COOL_DOWN_S_MAX
        later = (await house.ask("a")).error
        assert later is not None
        assert later.retry_after_s is not None
        assert later.retry_after_s <= COOL_DOWN_S_MAX

    play(scene, [Picky(lambda _body: limited("slow down", wait_s=86_400.0))], ledger=Ledger())
