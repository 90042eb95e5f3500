"""The cost of a request: each attempt is charged once, by one rule, equally in log, metrics and usage."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from accounted import SHARE, Books, disagreements, reporting, traffic
from gateway.api.plain_routes import contract
from gateway.config.settings import Settings
from gateway.events import AttemptReport, Result
from gateway.race.race import Race
from gateway.server.app import Gateway
from recovering import ask, run
from running import run_virtual
from scripted import DONE, FINISH, HEDGED, Outcome, RecordingClient, Scripted, Step, answer, run_race, status, text
from ttft_gateway.apis.errors import ConnectionCut
from ttft_gateway.hedging.budget import BudgetUnit
from ttft_gateway.hedging.charges import Billed, Disposition
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.limits.prices import Prices
from ttft_gateway.pool.pool import Pool

PRICES = Prices(prompt=2.0, cached_prompt=0.5, completion=8.0)
FACTS = RequestFacts(prompt_tokens=1000.0, answer_tokens=400)
Prepare = Callable[[list[Pool]], None]
During = Callable[[Race, RecordingClient, list[Pool]], object]


def priced(*, bills_cancelled: str = "") -> Prepare:
    """Every replica has prices; those named go on billing what was cancelled."""

    def prepare(pools: list[Pool]) -> None:
        for pool in pools:
            for replica in pool.replicas:
                replica.prices = PRICES
                replica.bills_cancelled = replica.name in bills_cancelled

    return prepare


def bill(attempt: AttemptReport) -> tuple[str, Disposition, Billed, int, int, bool]:
    """An attempt's replica and what is billed for it."""
    charge = attempt.charge
    counts = (charge.prompt_tokens, charge.completion_tokens, charge.estimated)
    return attempt.replica, charge.disposition, charge.billed, *counts


def bills(told: Outcome) -> list[tuple[str, Disposition, Billed, int, int, bool]]:
    """The tokens of every attempt."""
    return [bill(attempt) for attempt in told.report.attempts]


def test_a_request_that_was_not_raced_costs_what_its_replica_reports() -> None:
    """One attempt: the winner's, as reported, cached tokens at their price."""
    told = run_race(Scripted(reporting(0.01, cached=800)), prepare=priced(), facts=FACTS)
    assert bills(told) == [("a", Disposition.WINNER, Billed.USED, 1010, 50, False)]
    assert told.report.attempts[0].charge.cost == (210 * 2.0 + 800 * 0.5 + 50 * 8.0) / 1e6


def test_a_loser_costs_its_prompt() -> None:
    """A cancelled loser is billed for the prompt it was sent, estimated, whichever of the two it is."""
    for first, second, loser in (
        (reporting(5.0), reporting(0.01), "a"),
        (reporting(0.3), reporting(5.0), "b"),
    ):
        told = run_race(Scripted(first), Scripted(second), prepare=priced(), facts=FACTS)
        lost = next(each for each in bills(told) if each[0] == loser)
        assert lost == (loser, Disposition.LOSER, Billed.USED, 1000, 0, True)
        assert sum(each[1] is Disposition.WINNER for each in bills(told)) == 1


def test_a_loser_that_cannot_be_cancelled_costs_as_much_of_an_answer_as_the_winner() -> None:
    """If cancelling does not stop the bill, the loser's answer is assumed to be as long as the winner's."""
    replicas = (Scripted(reporting(5.0)), Scripted(reporting(0.01)))
    told = run_race(*replicas, prepare=priced(bills_cancelled="a"), facts=FACTS)
    assert bills(told)[0] == ("a", Disposition.LOSER, Billed.WHOLE, 1000, 50, True)
    silent = (Scripted(reporting(5.0)), Scripted(answer(0.01, "abc")))  # a winner that reports nothing
    told = run_race(*silent, prepare=priced(bills_cancelled="a"), facts=FACTS)
    assert bills(told)[0] == ("a", Disposition.LOSER, Billed.WHOLE, 1000, 3, True)


def test_failures_are_apart_from_the_price_of_hedging() -> None:
    """An attempt that failed is no loser: a 503 costs nothing, a cut in the answer what had come by then."""
    told = run_race(Scripted(status(0.01, 503)), Scripted(reporting(0.01)), prepare=priced(), facts=FACTS)
    assert bills(told) == [
        ("a", Disposition.FAILED, Billed.NOTHING, 0, 0, False),
        ("b", Disposition.WINNER, Billed.USED, 1010, 50, False),
    ]
    cut: list[Step] = [(0.001, "headers"), (0.01, text("a")), (0.02, text("b")), (0.03, ConnectionCut("cut"))]
    told = run_race(Scripted(cut), prepare=priced(), facts=FACTS)
    assert bills(told) == [("a", Disposition.FAILED, Billed.USED, 1000, 2, True)]


def leaving(after_s: float) -> During:
    """The client disconnects."""
    return lambda race, _client, _pools: race._runtime.loop.call_later(after_s, race.client_gone)


def test_what_a_client_leaves_behind_is_billed() -> None:
    """Before content the primary is abandoned, a backup is a hedge's cost; later the generated part is billed."""
    slow = (Scripted(reporting(5.0)), Scripted(reporting(5.0)))
    told = run_race(*slow, during=leaving(0.5), prepare=priced(bills_cancelled="b"), facts=FACTS)
    assert bills(told) == [
        ("a", Disposition.ABANDONED, Billed.USED, 1000, 0, True),
        ("b", Disposition.LOSER, Billed.WHOLE, 1000, 400, True),  # the caller's own bound on the answer
    ]
    told = run_race(Scripted(answer(0.01, "abcdefgh")), during=leaving(0.045), prepare=priced(), facts=FACTS)
    assert bills(told) == [("a", Disposition.WINNER, Billed.USED, 1000, 4, True)]


def test_a_stream_that_is_carried_on_is_paid_for_in_parts() -> None:
    """A broken stream is billed for its events, its recovery for a longer prompt; neither is a cost of hedging."""
    steady: dict[str, object] = {"ttft": "10ms", "gap": "1ms", "tokens": 20}
    cut = {**steady, "faults": ["cut_rst:12 once"]}
    told = run(ask(), cut, steady, prefills=True)
    broken, carried = (attempt.charge for attempt in told.report.attempts)
    assert (broken.disposition, broken.billed, broken.completion_tokens) == (Disposition.FAILED, Billed.USED, 12)
    assert (carried.disposition, carried.estimated) == (Disposition.WINNER, False)
    assert carried.prompt_tokens > broken.prompt_tokens
    assert carried.completion_tokens < 20
    told = run(ask(), cut, {**steady, "gap": "2ms"}, seeds=[0, 5])
    assert told.report.attempts[1].error == "diverged"
    assert [attempt.charge.disposition for attempt in told.report.attempts] == [Disposition.FAILED, Disposition.FAILED]


def test_a_budget_of_spend_is_earned_by_what_answers_cost() -> None:
    """With a share of the spend, the first prompt pays for one hedge; then answers earn, and a hedge is charged."""
    hedge = replace(HEDGED, budget_unit=BudgetUnit.COST)
    slow = (Scripted(reporting(0.5)), Scripted(reporting(0.01)))
    told = run_race(*slow, hedge=hedge, prepare=priced(), facts=FACTS)
    assert told.report.result is Result.BACKUP_WON

    def begun_cheaply(pools: list[Pool]) -> None:
        priced()(pools)
        pools[0].budget.cost.open(1e-4)

    told = run_race(*map(Scripted, (reporting(0.5), reporting(0.01))), hedge=hedge, prepare=begun_cheaply, facts=FACTS)
    assert (told.report.result, told.report.denials) == (Result.DENIED, (Denial.BUDGET,))
    assert told.report.denied_why == "the hedge budget is too low: 2.5 requests (1 needed), cost 0.00015 (0.002 needed)"
    earned = told.pools[0].budget.cost
    assert earned.credit == pytest.approx(1.5e-4 + PRICES.cost(1010, 0, 50))

    def spent_before(pools: list[Pool]) -> None:
        priced(bills_cancelled="a")(pools)
        pools[0].budget.cost.earn(0.0, 1.0)

    told = run_race(*map(Scripted, (reporting(0.5), reporting(0.01))), hedge=hedge, prepare=spent_before, facts=FACTS)
    assert told.report.result is Result.BACKUP_WON
    tickets = 1000 * 2.0 / 1e6 + 400 * 8.0 / 1e6  # the prompt at b, and the answer that a goes on billing
    assert told.pools[0].budget.cost.credit == pytest.approx(1.5 + 1.0 - tickets + PRICES.cost(1010, 0, 50), rel=1e-3)


@pytest.mark.parametrize("seed", [1, 2])
def test_everyone_says_the_same_of_any_traffic(seed: int) -> None:
    """With hedges, failures, cuts and disconnects each attempt is charged once, and all reports agree."""
    seen = traffic(300, seed)
    assert len(seen.ended) == 300
    assert seen.attempts == seen.sent
    assert min(seen.hedged, seen.left) > 5
    assert set(seen.told["events"]) == set(Disposition)
    assert disagreements(seen.told) == []
    assert seen.totals.reserved > 0
    assert seen.totals.under_way == 0
    answers = seen.cost(Disposition.WINNER) + seen.cost(Disposition.FAILED)
    assert seen.cost(Disposition.LOSER) <= SHARE * answers + 0.01  # 1.5 of the first answer, and an overdraft


SCRIPTS: list[list[Step]] = [
    reporting(0.02),
    reporting(0.15, cached=500),
    reporting(5.0),
    answer(0.05, "abc"),
    answer(0.3),
    status(0.01, 503),
    status(0.12, 429),
    status(0.01, 401),
    status(0.01, 400),
    [(0.001, "headers"), (0.02, text("a")), (0.05, ConnectionCut("cut"))],
    [(0.12, ConnectionCut("cut"))],
    [(0.01, "headers"), (0.01, FINISH), (0.01, DONE), (0.02, None)],
    [(0.01, "headers"), (0.02, None)],
]
script = st.sampled_from(SCRIPTS)


@settings(max_examples=30)
@given(
    st.lists(script, min_size=2, max_size=3), script, st.sampled_from([None, 0.0, 0.11, 0.2]), st.sampled_from("abc")
)
def test_every_attempt_is_accounted_once_and_everywhere_alike(
    scripts: list[list[Step]], fallback: list[Step], leaves_s: float | None, goes_on: str
) -> None:
    """In any race each upstream request has one charge; log, metrics and usage add up to the same."""
    told = run_race(
        *map(Scripted, scripts),
        fallbacks=[Scripted(fallback)],
        during=None if leaves_s is None else leaving(leaves_s),
        prepare=priced(bills_cancelled=goes_on),
        facts=FACTS,
    )
    charges = [attempt.charge for attempt in told.report.attempts]
    assert len(charges) == sum(len(replica.streams) for replica in told.replicas)
    assert sum(charge.disposition is Disposition.WINNER for charge in charges) == (told.report.winner is not None)

    books = Books()
    for event in told.events:
        books.hear(event)
    sums = run_virtual(books.told())
    assert set(sums["events"]) == {charge.disposition for charge in charges}
    assert disagreements(sums) == []


def test_prices_and_the_consent_to_bills_reach_the_replicas() -> None:
    """A replica has its own prices or its model's; it takes hedges if cancelling stops the bill, or if configured."""
    rows: list[dict[str, object]] = [
        {"name": "a", "kind": "openai"},
        {"name": "b", "kind": "groq", "prices": {"prompt": 0.5, "cached_prompt": 0.25, "completion": 0.75}},
        {"name": "c", "kind": "compatible", "allow_billed_hedges": True},
        {"name": "d", "kind": "compatible", "cancel_stops_billing": True},
        {"name": "e", "kind": "openai", "cancel_stops_billing": False},
        {"name": "f", "kind": "openrouter"},
    ]
    replicas = [{**row, "base_url": "http://127.0.0.1:1/v1"} for row in rows]
    model = {"name": "m", "prices": {"prompt": 2.5, "completion": 10}, "replicas": replicas}
    checked = Settings.model_validate({"models": [{**model, "hedge": {"budget_unit": "cost"}}]})

    contract()  # read the file while no loop is running

    async def built() -> Pool:
        async with asyncio.TaskGroup() as tasks:
            gateway = Gateway(checked, tasks)
            gateway.close()
            return gateway.in_force.topology.models["m"].pools[0]

    pool = run_virtual(built())
    assert [replica.prices for replica in pool.replicas] == [
        Prices(2.5, 2.5, 10.0),
        Prices(0.5, 0.25, 0.75),
        *[Prices(2.5, 2.5, 10.0)] * 4,
    ]
    assert [(each.hedgeable, each.bills_cancelled, each.billing_unknown) for each in pool.replicas] == [
        (True, False, False),
        (False, True, False),
        (True, True, True),
        (True, False, False),
        (False, True, False),
        (False, True, True),
    ]
    assert pool.budget.unit is BudgetUnit.COST
