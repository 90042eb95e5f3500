"""Follows streams of a pool that generate an answer, and learns the speed of their replicas from their progress. Pure.

At most one stream of a replica in a second is followed, and of a busy pool three streams of ten. It is looked at twice
a second and at its end, never when a token arrives. However often it is looked at, the stream counts once, because an
answer has a speed of its own; it counts again if it has become slower or faster, as then its replica has.

A token is an event of content, times the tokens of an event by the usage of the replica's earlier answers.

Units: seconds of the loop's clock.
"""

import math
from collections.abc import Collection, Mapping
from typing import Annotated, Final

import msgspec

from ttft_gateway.estimation.decode import DecodeLaw, DecodeSpeeds, SpeedsState, StreamSample
from ttft_gateway.hedging.contract import AttemptView

_EVERY_S: Final = 1.0  # between two streams of a replica that are followed
_SHARE: Final = 0.3  # of the pool's streams, each of which costs as much as a tenth of a request, ...
_RATE_PER_S: Final = 2.0  # ... and streams a second
_SAVED_MAX: Final = 4.0  # streams that may be followed in a row
_FOLLOWED_MAX: Final = 16  # streams of a replica at a time: answers may last for minutes
_LOOK_S: Final = 0.5
_FIRST_EVENTS: Final = 16  # before the speed of a stream is known
_FIRST_S: Final = 0.2  # shortest time of these: an upstream may send its first events together
_EVENTS_MIN: Final = 8  # of a later measurement
_CHANGE: Final = 2.0  # ratio of two gaps of one stream that is not noise
_HALF: Final = 0.5  # of the weight of a stream, for its first gaps
_COMPARED_MIN: Final = 2  # replicas
_RATIO_STEP: Final = 0.1  # of one answer in the tokens of an event


class StreamsState(msgspec.Struct, frozen=True):
    """Speeds of a pool's streams as plain values.

    Attributes:
        event_tokens: tokens of an event of each replica with usage.
    """

    speeds: SpeedsState
    event_tokens: dict[str, Annotated[float, msgspec.Meta(gt=0.0, le=1e6)]]


class _Followed:
    """A stream that is followed.

    Attributes:
        load: streams in flight at its replica when it began, with this one.
        mark_s, mark_events: time and number of the last event that was measured.
        gap_s: last measured time of an event; None before the first measurement.
    """

    __slots__ = ("attempt", "begun_s", "gap_s", "load", "mark_events", "mark_s", "prompt_tokens")

    def __init__(self, attempt: AttemptView, prompt_tokens: float, begun_s: float) -> None:
        self.attempt = attempt
        self.prompt_tokens = prompt_tokens
        self.load = attempt.replica.in_flight
        self.begun_s = self.mark_s = begun_s
        self.mark_events = attempt.events
        self.gap_s: float | None = None


class _Replica:
    """The streams of one replica.

    Attributes:
        due_s: time from which the next stream is followed.
        count: streams that are followed.
        event_tokens: tokens of an event by usage; None before an answer with usage.
    """

    __slots__ = ("count", "due_s", "event_tokens")

    def __init__(self) -> None:
        self.due_s = -math.inf
        self.count = 0
        self.event_tokens: float | None = None


class Streams:
    """The followed streams of one pool.

    Attributes:
        followed: followed streams by the numbers of their attempts in the pool.
        due_s: time of the next `look`; infinite for a single replica, which is compared with none.
        law: expected times of answers at the last look; None while they are not known to differ.
    """

    def __init__(self, replicas: Collection[str]) -> None:
        self.speeds = DecodeSpeeds()
        self.followed: dict[int, _Followed] = {}
        self.due_s = math.inf if len(replicas) < _COMPARED_MIN else -math.inf
        self.law: DecodeLaw | None = None
        self._replicas = {name: _Replica() for name in replicas}
        self._has_usage = False
        self._saved = _SAVED_MAX  # streams that may be followed now
        self._begun_s = -math.inf

    def adopt_state(self, old: "Streams", stay: Collection[str]) -> None:
        """Take over what was learned under other settings; `stay` has the names of unchanged replicas."""
        self.speeds, self.law, self.followed = old.speeds, old.law, old.followed
        self._has_usage = old._has_usage
        self._replicas |= {name: each for name, each in old._replicas.items() if name in stay}
        self.speeds.forget_others(stay)

    def state(self, now_s: float) -> StreamsState | None:
        """Return the state as plain values; None before the first stream."""
        speeds = self.speeds.state(now_s)
        known = {name: each.event_tokens for name, each in self._replicas.items() if each.event_tokens is not None}
        return None if speeds is None else StreamsState(speeds, known)

    def restore(self, speeds: DecodeSpeeds, event_tokens: Mapping[str, float], stay: Collection[str]) -> None:
        """Take over recorded speeds, and the tokens of an event; `stay` has the names of unchanged replicas."""
        self.speeds = speeds
        speeds.forget_others(stay)
        self._has_usage = bool(event_tokens)
        for name in event_tokens.keys() & set(stay):
            self._replicas[name].event_tokens = event_tokens[name]
        self.law = speeds.law()

    def begin(self, number: int, attempt: AttemptView, prompt_tokens: float, now_s: float) -> None:
        """Follow a stream from its first content on, if it is the turn of its replica."""
        saved = self._saved + _SHARE + _RATE_PER_S * (now_s - self._begun_s)
        self._saved = saved = saved if saved < _SAVED_MAX else _SAVED_MAX
        self._begun_s = now_s
        replica = self._replicas.get(attempt.replica.name)
        if saved >= 1.0 and replica is not None and now_s >= replica.due_s and replica.count < _FOLLOWED_MAX:
            self._saved = saved - 1.0
            replica.due_s = now_s + _EVERY_S
            replica.count += 1
            self.followed[number] = _Followed(attempt, prompt_tokens, now_s)

    def end(self, number: int, now_s: float) -> None:
        """Learn all gaps of a followed stream that has ended."""
        stream = self.followed.pop(number)
        attempt = stream.attempt
        replica = self._replicas.get(attempt.replica.name)
        if replica is None:  # removed by a reload
            return
        replica.count -= 1
        if attempt.is_paced:
            return
        events = attempt.events - 1
        if events >= _EVENTS_MIN:
            self._learn_usage(replica, attempt)
        weight = 1.0 if stream.gap_s is None else _HALF
        sample = self._sample(stream, replica, attempt.generated_s - stream.begun_s, events, weight)
        if sample is not None:
            self.speeds.add_answer(attempt.replica.name, sample)
            if events >= _EVENTS_MIN:
                self.speeds.add(attempt.replica.name, sample, now_s)

    def look(self, now_s: float) -> None:
        """Learn from the followed streams, and renew the law."""
        self.due_s = now_s + _LOOK_S
        for stream in self.followed.values():
            replica = self._replicas.get(stream.attempt.replica.name)
            if replica is not None and not stream.attempt.is_paced:
                self._look_at(stream, replica, now_s)
        self.law = self.speeds.law()

    def slowness(self, name: str) -> float:
        """Return the slowness of a replica's answers that is beyond chance and load, 1 without."""
        return 1.0 if self.law is None else self.law.slowness.get(name, 1.0)

    def _look_at(self, stream: _Followed, replica: _Replica, now_s: float) -> None:
        attempt, gap_s = stream.attempt, stream.gap_s
        events, time_s = attempt.events - stream.mark_events, attempt.generated_s - stream.mark_s
        if gap_s is None:
            if events < _FIRST_EVENTS or time_s < _FIRST_S:
                return
        elif events < _EVENTS_MIN:  # the next event may be late, too
            events, time_s = max(1, events), now_s - stream.mark_s
            if time_s < _CHANGE * _EVENTS_MIN * gap_s:
                return
        if gap_s is None or not 1.0 / _CHANGE < time_s / events / gap_s < _CHANGE:
            stream.gap_s = time_s / events
            sample = self._sample(stream, replica, time_s, max(_EVENTS_MIN, events), _HALF)
            if sample is not None:
                self.speeds.add(attempt.replica.name, sample, now_s)
        stream.mark_s, stream.mark_events = attempt.generated_s, attempt.events

    def _learn_usage(self, replica: _Replica, attempt: AttemptView) -> None:
        """Learn the tokens of an event."""
        usage = attempt.usage
        if usage is None or usage.completion_tokens is None:
            return
        hidden = (usage.reasoning_tokens or 0) if usage.hidden_reasoning else 0
        tokens = max(1, usage.completion_tokens - hidden) / attempt.events
        old = replica.event_tokens
        replica.event_tokens = tokens if old is None else old + _RATIO_STEP * (tokens - old)
        if not self._has_usage:  # what was learned counts events
            self._has_usage = True
            self.speeds.restart()

    def _sample(
        self, stream: _Followed, replica: _Replica, time_s: float, events: int, weight: float
    ) -> StreamSample | None:
        """Return a measurement; None if its tokens are not comparable with the tokens of other replicas."""
        event_tokens = replica.event_tokens
        if event_tokens is None and self._has_usage:
            return None
        load = math.sqrt(stream.load * max(1, stream.attempt.replica.in_flight))
        tokens = events if event_tokens is None else events * event_tokens
        return StreamSample(time_s, tokens, load, stream.prompt_tokens, weight)
