"""A pool without a race, and attempts as it sees them; nothing is sent."""

from collections.abc import Mapping
from dataclasses import dataclass

from defaults import default_hedging
from scripted import Scripted
from ttft_gateway.apis.base import Phase, Usage
from ttft_gateway.hedging.contract import Forecast, RequestFacts, StreamWatch
from ttft_gateway.hedging.outcomes import Outcome
from ttft_gateway.limits.ledger import Ledger
from ttft_gateway.pool.pool import Pool
from ttft_gateway.routing.replicas import Replica

_FACTS = RequestFacts(prompt_tokens=1_000.0)


@dataclass(eq=False)
class Seen:
    """An attempt as the pool sees it."""

    replica: Replica
    start_s: float
    headers_s: float | None = None
    content_s: float | None = None
    first_token_s: float | None = None
    last_s: float = 0.0
    generated_s: float = 0.0
    is_paced: bool = False
    output_s: float = 0.0
    phase: Phase | None = None
    watch: StreamWatch | None = None
    status: int | None = None
    error: str | None = None
    empty: bool = False
    events: int = 0
    usage: Usage | None = None
    forecast: Forecast | None = None


def pool(
    *quotas: str | None,
    ledgers: Mapping[str, Ledger] | None = None,
    bills_cancelled: bool = False,
    counts_max_tokens: bool = False,
    batches: bool = False,
) -> Pool:
    """Replicas a, b, ... at these quotas."""
    replicas = [
        Replica(
            name,
            Scripted(),
            quota,
            bills_cancelled=bills_cancelled,
            counts_max_tokens=counts_max_tokens,
            batches=batches,
        )
        for name, quota in zip("abcd", quotas, strict=False)
    ]
    return Pool("pool", replicas, default_hedging(), ledgers)


def send(pool: Pool, index: int, now_s: float = 0.0, facts: RequestFacts = _FACTS) -> Seen:
    """An attempt at one of its replicas."""
    attempt = Seen(pool.replicas[index], now_s)
    pool.on_sent(attempt, facts, None, is_first=True)
    return attempt


def fail(pool: Pool, index: int, now_s: float) -> None:
    """An attempt that fails immediately."""
    pool.on_end(send(pool, index, now_s), Outcome.FAILED, now_s, None)


def answer(pool: Pool, attempt: Seen, now_s: float) -> None:
    """The whole answer of an attempt."""
    pool.on_content(attempt, now_s)
    attempt.content_s = attempt.first_token_s = now_s
    pool.on_end(attempt, Outcome.FINISHED, now_s, None)
