"""Exchanges state between gateways at regular times: one batch of asks for many pools, and one timer.

Nothing here waits, and no request does: the state of the others is put where routing and learning read it. An exchange
decides what it asks and what it does without answers; a bug in one of them costs the others nothing. The period grows
with the number of exchanges up to 0.1 s, and with the number of gateways and the bytes of their batches, so that they
use at most about half of a core of the engine, and each gateway at most about 30 kB/s, unless loads would become too
old. It also grows with the time to a reply: if the engine is slower than expected, all gateways ask less often. Many
pools are asked and answered over several turns of the event loop, and in several batches: a thousand in one turn would
hold the loop for 50 ms. A batch is larger for Redis, which takes a fixed time for each, than for the supervisor of a
host.

Units: seconds of the clock that the caller passes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from gateway.share.messages import Answer, Ask, Engine, Lost, Reply, SwitchesAnswer, SwitchesAsk, SwitchState

PERIOD_S: Final = 0.05  # loads that are older make many gateways send to the same replica
_EXCHANGE_S, _EXCHANGES_S_MAX = 2.5e-3, 0.1  # of the period for each exchange, so that all take a few % of a core
LOST_S: Final = 0.5  # after this time an ask counts as lost
PERIOD_S_MAX: Final = 2.0  # a process that is silent for 5 s counts as gone
CORE_SHARE: Final = 0.5  # of one core of the engine, used by the batches of all gateways
BATCH_S, BYTE_S = 50e-6, 60e-9  # time that Redis takes for a batch, and for each of its bytes; both are upper bounds
_BYTES_PER_S: Final = 23_000  # of what is counted: with the framing, and in seconds with more, it stays under 30 kB/s
_BYTES_PERIOD_S_MAX: Final = 0.34  # up to which bytes make the period longer; the loads of others are used for 0.5 s
_BATCH_WEIGHT: Final = 0.3  # of a batch in the mean
_REPLIES: Final = 8  # of which the fastest counts: pauses of this process make some replies late
_REPLY_SHARE: Final = 0.05  # of the period: the time to a reply; it is longer if the engine has too much to do
_JITTER: Final = 0.1  # of the period, so that gateways do not ask at the same time
_SWITCHES_S: Final = 0.4  # between two asks for switches, so that a switch reaches all gateways within a second
_STORED_S: Final = 7 * 86_400.0  # time until the engine drops a switch
_OWN_MAX: Final = 1_024  # names
TURN_EXCHANGES: Final = 20  # that ask or are answered, 0.5 to 1 ms
_STILL: Final = 0.2  # of the time of such an exchange, if it asks nothing


class Exchange(Protocol):
    """The exchange of one kind of state with other gateways."""

    def asks(self, now_s: float, period_s: float) -> Sequence[Ask]:
        """Return what to ask now, nothing if nothing is due, and drop what is too old.

        Args:
            period_s: expected time until the next call.
        """

    def answered(self, answers: Sequence[Answer], now_s: float) -> None:
        """Take in the answers to the last asks; there is no call if one of them is lost or damaged."""


_Answered = tuple[Exchange, Sequence[Answer]]


class Timer(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None:
        """Do not call."""


class _Round:
    """One exchange of all pools.

    Attributes:
        collected: number of exchanges that have been asked for their asks.
        batch: exchanges and their asks that are not sent yet.
        sent: number of batches.
        open: numbers of the batches that have no reply yet, or one that is being taken in.
        replies: numbers and answers of the batches that are being taken in, the earliest first.
        is_busy: True from one turn to the next one.
    """

    def __init__(self, exchanges: Sequence[Exchange], period_s: float) -> None:
        self.exchanges = exchanges
        self.period_s = period_s
        self.collected = self.sent = 0
        self.batch: list[tuple[Exchange, Sequence[Ask]]] = []
        self.open: set[int] = set()
        self.replies: deque[tuple[int, list[_Answered]]] = deque()
        self.is_busy = False


class Sync:
    """The timer and the batches of one gateway.

    Args:
        now: returns the time.
        call_later: calls a function after a time.
        rand: returns uniform random numbers in [0, 1).
        batch_exchanges: number of exchanges that fill a batch.
        period_s: shortest time between two batches.
        on_error: called with an exception of an exchange, which is skipped once; None to raise it.

    Attributes:
        exchanges: the exchanges; the caller may replace them at any time.
        processes: number of gateways at the last answer.
        answered_s: time of the last answer; -inf before the first.
    """

    def __init__(
        self,
        engine: Engine,
        now: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Timer],
        rand: Callable[[], float],
        batch_exchanges: int,
        period_s: float = PERIOD_S,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        self.exchanges: Sequence[Exchange] = ()
        self.processes = 1
        self.answered_s = float("-inf")
        self._engine = engine
        self._now = now
        self._call_later = call_later
        self._rand = rand
        self._period_s = period_s
        self._batch_exchanges = batch_exchanges
        self._on_error = on_error
        self._timer: Timer | None = None
        self._asked_s = float("-inf")
        self._round: _Round | None = None  # the last one
        self._batches = 1  # of the last exchange
        self._bytes = 0.0  # mean of the last batches
        self._reply_times_s: deque[float] = deque(maxlen=_REPLIES)

    @property
    def period_s(self) -> float:
        """Usual time between two batches."""
        reply_s = min(self._reply_times_s, default=0.0)
        size_bytes = self._batches * self._bytes
        batch_s = self._batches * BATCH_S + BYTE_S * size_bytes
        bytes_s = min(size_bytes / _BYTES_PER_S, _BYTES_PERIOD_S_MAX)
        exchanges_s = min(len(self.exchanges) * _EXCHANGE_S, _EXCHANGES_S_MAX)
        needed_s = max(self.processes * batch_s / CORE_SHARE, reply_s / _REPLY_SHARE, bytes_s, exchanges_s)
        return max(self._period_s, min(PERIOD_S_MAX, needed_s))

    def start(self) -> None:
        """Exchange now, and again after each period until `stop`."""
        period_s = self.period_s * (1.0 + _JITTER * (2.0 * self._rand() - 1.0))
        self._timer = self._call_later(period_s, self.start)
        self.exchange()

    def stop(self) -> None:
        """End the exchange; the engine stays open."""
        self._round = None
        if self._timer is not None:
            self._timer.cancel()

    def exchange(self) -> None:
        """Send one batch, or several with many pools; nothing while a reply is awaited or taken in."""
        now_s, last = self._now(), self._round
        if last is not None and (last.is_busy or (last.open and now_s < self._asked_s + LOST_S)):
            return
        self._round = _Round(list(self.exchanges), self.period_s)
        self._turn(self._round)

    def _turn(self, this: "_Round") -> None:
        """Pass answers on to some exchanges, or collect the asks of some, and go on in the next turn."""
        if self._round is not this:
            return
        is_last = self._put(this) if this.replies else self._collect(this)
        this.is_busy = not is_last or bool(this.replies) or this.collected < len(this.exchanges)
        if this.is_busy:
            self._call_later(0.0, lambda: self._turn(this))

    def _collect(self, this: "_Round") -> bool:
        """Collect the asks of some exchanges, and send each full batch; return False after a full turn."""
        left, now_s, end = float(TURN_EXCHANGES), self._now(), len(this.exchanges)
        while left > 0 and this.collected < end:
            exchange = this.exchanges[this.collected]
            this.collected += 1
            if asks := self._asks(exchange, now_s, this.period_s):
                this.batch.append((exchange, asks))
            left -= 1.0 if asks else _STILL
            if len(this.batch) >= self._batch_exchanges or this.collected == end:
                self._send(this)
        if this.collected == end:
            self._batches = max(1, this.sent)
        return left > 0

    def _send(self, this: "_Round") -> None:
        batch, this.batch = this.batch, []
        asks = [ask for _, own_asks in batch for ask in own_asks]
        if not asks:
            return
        number, sent_s = this.sent, self._now()
        self._asked_s = sent_s
        this.sent += 1
        this.open.add(number)

        def answered(reply: Reply | None) -> None:
            if self._round is not this or number not in this.open:
                return
            self._reply_times_s.append(self._now() - sent_s)
            if reply is None or len(reply.answers) != len(asks):
                this.open.remove(number)
                return
            self.processes, self.answered_s = max(1, reply.processes), self._now()
            self._bytes += _BATCH_WEIGHT * (reply.size_bytes - self._bytes)
            answers = iter(reply.answers)
            this.replies.append((number, [(each, [next(answers) for _ in own_asks]) for each, own_asks in batch]))
            if not this.is_busy:
                self._turn(this)

        self._engine.ask(asks, answered)

    def _put(self, this: "_Round") -> bool:
        """Pass the answers of a batch on to some exchanges; then the batch is over; return False after a full turn."""
        number, answered = this.replies[0]
        for exchange, answers in answered[:TURN_EXCHANGES]:
            if not any(isinstance(answer, Lost) for answer in answers):
                try:
                    exchange.answered(answers, self.answered_s)
                except Exception as error:
                    self._failed(error)
        if rest := answered[TURN_EXCHANGES:]:
            this.replies[0] = number, rest
        else:
            this.replies.popleft()
            this.open.remove(number)
        return len(answered) < TURN_EXCHANGES

    def _asks(self, exchange: Exchange, now_s: float, period_s: float) -> Sequence[Ask]:
        try:
            return exchange.asks(now_s, period_s)
        except Exception as error:
            self._failed(error)
            return ()

    def _failed(self, error: Exception) -> None:
        if self._on_error is None:
            raise error
        self._on_error(error)


class Reach(NamedTuple):
    """The processes that an action has reached, and the number of all."""

    reached: int
    of: int


class SwitchExchange:
    """The exchange of switches with other hosts.

    The last value of each name counts, also at gateways that start later. A switch of this gateway goes out again after
    the engine has lost it.

    Args:
        apply: called with name and value of each switch by another gateway, and by this one before its last start.

    Attributes:
        reached: number of processes that had all switches at the last answer.
    """

    def __init__(self, apply: Callable[[str, str], None]) -> None:
        self.reached = 1
        self._apply = apply
        self._own: dict[str, str] = {}
        self._waiting: dict[str, str] = {}  # not yet acknowledged
        self._asked: dict[str, str] = {}
        self._after = 0
        self._due_s = 0.0

    @property
    def is_sent(self) -> bool:
        """True if the engine has all that was published."""
        return not self._waiting

    def publish(self, name: str, value: str) -> None:
        """Send a switch to all other processes with the next batch."""
        for switches in (self._own, self._waiting):
            switches.pop(name, None)
            switches[name] = value
            if len(switches) > _OWN_MAX:
                del switches[next(iter(switches))]

    def asks(self, now_s: float, period_s: float) -> Sequence[Ask]:
        """Return what was published, and ask for the switches of others."""
        if now_s < self._due_s and not self._waiting:
            return ()
        self._due_s = now_s + _SWITCHES_S - period_s / 2
        self._asked = dict(self._waiting)
        return (SwitchesAsk([SwitchState(name, value, _STORED_S) for name, value in self._asked.items()], self._after),)

    def answered(self, answers: Sequence[Answer], now_s: float) -> None:
        """Apply the switches of others."""
        for answer in answers:
            if not isinstance(answer, SwitchesAnswer):
                continue
            for name, value in self._asked.items():
                if self._waiting.get(name) == value:
                    del self._waiting[name]
            if answer.number < self._after:  # the engine has lost all
                self._waiting = self._own | self._waiting
            self._after, self.reached = answer.number, answer.reached
            if answer.switches:
                self._due_s = 0.0  # the next ask acknowledges them
            for switch in answer.switches:
                if switch.name not in self._waiting and self._asked.get(switch.name) != switch.value:
                    self._own.pop(switch.name, None)
                    self._apply(switch.name, switch.value)
            self._asked = {}
