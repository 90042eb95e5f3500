"""The estimated load of each replica of a pool, and the times for which it is remembered. Pure.

The pool reports requests and answers; `picker.py` reads the state to pick a replica.

Units: seconds of the loop's clock, tokens.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from ttft_gateway.apis.base import STALL_S
from ttft_gateway.estimation.prefixes import PrefixMemory, favourite, seed_of, uncached_tokens
from ttft_gateway.estimation.stall_detector import StallDetector
from ttft_gateway.hedging.contract import RequestFacts
from ttft_gateway.pool.learning import Learning
from ttft_gateway.pool.rejections import Rejections
from ttft_gateway.routing.replicas import SLOW_START_S, Replica

_BREAKS_S: Final = 600.0  # time after a broken answer in which complete ones are counted, too
UNSEEN_S: Final = 5.0  # a replica without a request for this long gets the next primary; longer, ...
_UNSEEN_REQUESTS: Final = 12.0  # ... if an equal share of the traffic has not brought it this number of requests
_DOUBTED_REQUESTS: Final = 2.0  # the same number for a replica that may be slow: a test needs seven or more
_PROBE_S: Final = 5.0  # time between two primaries of a suspect replica; longer, ...
_PROBE_REQUESTS: Final = 50.0  # ... if the pool has not had this number of requests: 2 % of them are enough
_MEMORY_S: Final = 30.0  # time for which levels are remembered; longer, ...
_MEMORY_REQUESTS: Final = 75.0  # ... until an equal share of the traffic has brought a replica this number of requests
_IDLE_S: Final = (
    60.0  # shortest time without a request after which replicas may be cold: serverless ones are stopped, ...
)
_IDLE_GAPS: Final = 10.0  # ... if it is longer than this number of usual times between two requests
_COLD_S: Final = 30.0  # for which a replica may be cold after it: longer starts are rare
_GAP_STEP: Final = 1.05  # of the usual time between two requests, which is their median
_GUESSED_SHARE: Final = 0.5  # of a prompt that counts as cached where another gateway has probably sent its prefix
_BUSY: Final = 0.99  # of the mean time between requests at which the first of these times grows
_GAP_WEIGHT: Final = 0.02  # of the last time between two requests in their mean
_BREAK_WEIGHT: Final = 0.1  # of one answer: about the last ten count
_BREAK_HALF_LIFE_S: Final = 180.0  # a share fades, so that the replica is tried again
_SAME_BREAK_S: Final = 0.02  # breaks less than this apart are one event: a restart cuts all streams of a replica
_BREAKS_TOLERATED: Final = 0.12  # one break among ten answers is usual
_CHANCE: Final = 1e-5  # that a row of answers without content is none of the replica's doing


class BreakShare:
    """The share of one replica's answers that break after their first content, and its cost in waiting time.

    A first token is no evidence for the whole answer: a replica that is quick to begin and then breaks would attract
    traffic by its TTFT. The cost is added to its predicted TTFT where replicas are compared, never where delays are
    made.
    """

    def __init__(self) -> None:
        self._share = 0.0
        self._at_s = -math.inf
        self._broken_s = -math.inf

    def add(self, now_s: float, *, broken: bool) -> None:
        """Add an answer that was complete, or broke after its first content."""
        if broken:
            is_counted, self._broken_s = now_s < self._broken_s + _SAME_BREAK_S, now_s
            if is_counted:
                return
        share = self._faded(now_s)
        self._share = share + _BREAK_WEIGHT * (broken - share)
        self._at_s = now_s

    def cost_s(self, now_s: float) -> float:
        """Return the expected loss by one more request here; 0 below the tolerated share."""
        return max(0.0, self._faded(now_s) - _BREAKS_TOLERATED) * STALL_S  # the loss of a client by one break

    def _faded(self, now_s: float) -> float:
        return self._share * 0.5 ** ((now_s - self._at_s) / _BREAK_HALF_LIFE_S) if self._share else 0.0


class EmptyAnswers(msgspec.Struct):
    """The complete answers without content of one replica.

    Attributes:
        count: their number.
        in_a_row: their number since the replica's last first content.
        contents: number of the replica's first contents before them.
        others: numbers of first contents and of empty answers of the other replicas before them.
    """

    count: int = 0
    in_a_row: int = 0
    contents: int = 0
    others: tuple[int, int] = (0, 0)


class OthersLoad(msgspec.Struct):
    """The part of a replica's load that other gateways have reported.

    Attributes:
        pending: prompt tokens of their attempts without first content.
        contents: number of their first contents, since their start.
        steps, step_samples: sum and number of the steps of their levels, since their start.
        tally: their attempts by speed, since their start (`estimation.slowness.Tally`); empty before the first report.
        reported: number of own attempts at the last report.
        answered_s: time at which this gateway learned of their last first content.
        probe_until_s: end of this gateway's lease of the next probe.
        forgiven: own failures before that time.
        opened: True while the breaker is open because of their failures.
    """

    pending: float = 0.0
    contents: int = 0
    steps: int = 0
    step_samples: int = 0
    tally: Sequence[int] = ()
    reported: int = -1
    answered_s: float = -math.inf
    probe_until_s: float = -math.inf
    forgiven: int = 0
    opened: bool = False


class ReplicaLoad(msgspec.Struct):
    """The estimated load of a replica.

    Attributes:
        rejections: judge of its rejections.
        breaks: share of answers that broke after their first content.
        empties: complete answers without content.
        stalls: attempts without first content.
        memory: prompts in its prefix cache.
        pending: prompt tokens of attempts without first content, of other gateways too.
        used_s: time of the last attempt sent to it, by other gateways too.
        own_s: time of the last attempt of this gateway.
        is_new: True from its addition to a running pool to its first content: hedges do not go to it.
        sent: number of attempts.
        contents: number of attempts with a first content.
        content_s: time of the last first content.
        cold_until_s: end of the time in which it may be cold after idle time; its first content ends it earlier.
        others: part of the load that other gateways have reported.
    """

    rejections: Rejections
    breaks: BreakShare = msgspec.field(default_factory=BreakShare)
    empties: EmptyAnswers = msgspec.field(default_factory=EmptyAnswers)
    stalls: StallDetector = msgspec.field(default_factory=StallDetector)
    memory: PrefixMemory = msgspec.field(default_factory=PrefixMemory)
    pending: float = 0.0
    used_s: float = -math.inf
    own_s: float = -math.inf
    is_new: bool = False
    sent: int = 0
    contents: int = 0
    content_s: float = -math.inf
    cold_until_s: float = -math.inf
    others: OthersLoad = msgspec.field(default_factory=OthersLoad)


class Loads:
    """The loads of one pool's replicas.

    Attributes:
        processes: number of processes that report their loads to each other, this one included.
        of: loads by replica.
        numbers: numbers of the attempts in `ReplicaLoad.stalls`.
        unseen_s: time without a request after which a replica gets the next primary.
        doubted_s: the same time for a replica that may be slow.
        probe_every_s: time between two primaries of a suspect replica.
        breaking_until_s: end of the time in which answers are counted because one broke.
        ramping_until_s: end of the slow start of the last replica that came back.
    """

    def __init__(self, replicas: Iterable[Replica], learning: Learning, old: "Loads | None" = None) -> None:
        known = {} if old is None else old.of
        self._learning = learning
        self.of: dict[Replica, ReplicaLoad] = {
            each: known[each] if each in known else ReplicaLoad(Rejections(each.breaker)) for each in replicas
        }
        self._seeds = {replica.name: seed_of(replica.name) for replica in self.of}
        self._replica_count = len(self.of)
        self.processes = 1
        self.numbers = itertools.count()
        self._request_s = math.inf  # time of the last request
        self._gap_s = 0.0  # mean time between two requests; up to _busy_gap_s, all times have their lowest values
        self._usual_gap_s = 0.0  # about the median of these times: few long ones do not change it
        self._busy_gap_s = _BUSY * min(
            _PROBE_S / _PROBE_REQUESTS,
            min(UNSEEN_S / _UNSEEN_REQUESTS, _MEMORY_S / _MEMORY_REQUESTS) / max(1, self._replica_count),
        )
        self._is_quiet = True  # the mean was longer at the last request
        self.unseen_s, self.doubted_s, self.probe_every_s = UNSEEN_S, UNSEEN_S, _PROBE_S
        self.breaking_until_s = self.ramping_until_s = -math.inf

    def adopt_state(self, old: "Loads") -> Sequence[Replica]:
        """Take over the state of a former pool and return the replicas that stay; running attempts share the loads."""
        self.numbers, self.processes = old.numbers, old.processes
        self._request_s, self._gap_s, self._usual_gap_s = old._request_s, old._gap_s, old._usual_gap_s
        self.ramping_until_s, self.breaking_until_s = old.ramping_until_s, old.breaking_until_s
        return [replica for replica in self.of if replica in old.of]

    def on_request(self, now_s: float) -> None:
        """Count a request: with little traffic, what was learned is remembered for longer.

        After a time without requests that is unusually long, the replicas may be cold.
        """
        gap_s = now_s - self._request_s
        if gap_s > 0.0:
            usual_s = self._usual_gap_s
            if gap_s > _IDLE_S and gap_s > _IDLE_GAPS * usual_s > 0.0:
                for load in self.of.values():
                    load.cold_until_s = now_s + _COLD_S
            self._usual_gap_s = (usual_s * _GAP_STEP if gap_s > usual_s else usual_s / _GAP_STEP) or gap_s
            self._gap_s += _GAP_WEIGHT * (gap_s - self._gap_s)
            if self._gap_s > self._busy_gap_s or self._is_quiet:
                self._set_times()
        self._request_s = now_s

    @property
    def gap_s(self) -> float:
        """Mean time between two requests; 0 before the second one."""
        return self._gap_s

    def restore(self, gap_s: float, late: Mapping[str, int]) -> None:
        """Take over a recorded mean time between two requests, and the late attempts of replicas."""
        for replica, load in self.of.items():
            load.stalls.restore(late.get(replica.name, 0))
        self._gap_s = gap_s
        self._set_times()

    def _set_times(self) -> None:
        """Set the times that grow while there is little traffic."""
        self._is_quiet = self._gap_s > self._busy_gap_s
        gap_s = self._gap_s / self.processes  # each gateway gets about as many requests
        share_s = self._replica_count * gap_s
        unseen_s, doubted_s = _UNSEEN_REQUESTS * share_s, _DOUBTED_REQUESTS * share_s
        probe_every_s, memory_s = _PROBE_REQUESTS * gap_s, _MEMORY_REQUESTS * share_s
        self.unseen_s = unseen_s if unseen_s > UNSEEN_S else UNSEEN_S
        self.doubted_s = doubted_s if doubted_s > UNSEEN_S else UNSEEN_S
        self.probe_every_s = probe_every_s if probe_every_s > _PROBE_S else _PROBE_S
        self._learning.predictor.memory_s = memory_s if memory_s > _MEMORY_S else _MEMORY_S

    @property
    def has_requests(self) -> bool:
        """True after the pool's first request."""
        return math.isfinite(self._request_s)

    def on_recovered(self, now_s: float) -> None:
        """Start the slow start after a breaker has closed: its replica's share of primaries grows step by step."""
        self.ramping_until_s = now_s + SLOW_START_S

    def on_answer(self, replica: Replica, now_s: float, *, broken: bool) -> None:
        """Count an answer that broke after its first content, or one that was complete before `breaking_until_s`."""
        if broken:
            self.breaking_until_s = now_s + _BREAKS_S
        self.of[replica].breaks.add(now_s, broken=broken)

    def is_empty(self, replica: Replica) -> bool:
        """Return True if its last answer had no content."""
        load = self.of[replica]
        return load.empties.in_a_row > 0 and load.empties.contents == load.contents

    def on_empty(self, replica: Replica) -> bool:
        """Count a complete answer without content; return True if the replica is at fault for such answers.

        A model may stop at once, so a few are usual, and with some prompts many. The replica is at fault if its answers
        have no content in a row that has a chance below 1e-5 by the answers of the other replicas at the same time.
        """
        load, loads = self.of[replica], self.of.values()
        own = load.empties
        contents = sum(each.contents for each in loads) - load.contents
        empties = sum(each.empties.count for each in loads) - own.count
        if not self.is_empty(replica):
            own.in_a_row, own.contents, own.others = 0, load.contents, (contents, empties)
        own.count += 1
        own.in_a_row += 1
        since_contents, since_empties = max(0, contents - own.others[0]), max(0, empties - own.others[1])
        return ((since_empties + 1) / (since_contents + since_empties + 1)) ** own.in_a_row < _CHANCE

    def is_suspect(self, replica: Replica, now_s: float) -> bool:
        """Return True if it holds requests without answering them."""
        return self.of[replica].stalls.is_suspect(now_s)

    def uncached(self, facts: RequestFacts, replica: Replica, now_s: float) -> float:
        """Return the prompt tokens that a replica has to compute."""
        if not facts.prefixes:
            return facts.prompt_tokens
        cached = self.of[replica].memory.cached_bytes(facts.prefixes, now_s)
        if self.processes > 1 and self._is_favourite(replica, facts.prefixes):
            cached = max(cached, int(_GUESSED_SHARE * facts.prompt_bytes))
        return uncached_tokens(facts.prompt_tokens, facts.prompt_bytes, cached)

    def _is_favourite(self, replica: Replica, prefixes: tuple[int, ...]) -> bool:
        """Return True for the replica where every gateway expects a prefix that it has not sent itself."""
        return favourite(prefixes[min(1, len(prefixes) - 1)], self._seeds) == replica.name
