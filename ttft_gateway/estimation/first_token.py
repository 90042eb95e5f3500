"""Chooses the event that is timed as the first token of a pool's answers: content, or a sign of work. Pure.

A sign of work (an output item or a block of thinking begins) shows that a request has left its queue, also where the
reasoning that follows is not shown. A server that sends the sign together with its headers sends both before the
request has left the queue: such a sign shows no more than the headers. The times of headers and signs separate the two.

Units: seconds.
"""

from collections.abc import Collection, Iterator
from typing import Annotated, Final

import msgspec

from ttft_gateway.apis.base import Api, FirstToken, Usage

TOGETHER_S: Final = 0.02  # a sign this soon after the headers was sent with them; a prompt takes longer to compute
_SIGNS_MIN: Final = 3  # signs before they are trusted
_SEEN_MAX: Final = 20  # recent signs, or answers, that a share covers
_TRUSTED_SHARE: Final = 0.5
_DISTRUSTED_SHARE: Final = 0.25  # lower, so that a share near the limit does not switch to and fro
_APIS: Final = (None, *Api)
_HIDDEN_SHARE_MAX: Final = 0.2  # share of recent answers with hidden reasoning above which a pool hides its reasoning


_Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
_Seen = Annotated[int, msgspec.Meta(ge=0, le=_SEEN_MAX)]


class SignsState(msgspec.Struct, frozen=True):
    """The signs of work of a replica and API as plain values; see `Signs`."""

    replica: str
    api: Api | None
    seen: _Seen
    apart_share: _Share
    informative: bool


class FirstTokenState(msgspec.Struct, frozen=True):
    """A choice of the first token as plain values; see `FirstTokenChoice`.

    Attributes:
        answers: number of recent answers that the share of hidden reasoning covers.
    """

    answers: _Seen
    hidden_share: _Share
    times_work: bool
    signs: list[SignsState]


class Signs:
    """The signs of work in a replica's answers of one API.

    Attributes:
        seen: number of recent signs.
        apart_share: share of the signs that were received later than the headers.
        informative: True if a sign shows that work on the request has begun.
    """

    def __init__(self) -> None:
        self.seen = 0
        self.apart_share = 0.0
        self.informative = False

    def add(self, after_headers_s: float) -> None:
        """Add the time from the response headers to the first sign."""
        self.seen = min(self.seen + 1, _SEEN_MAX)
        self.apart_share += ((after_headers_s > TOGETHER_S) - self.apart_share) / self.seen
        required = _DISTRUSTED_SHARE if self.informative else _TRUSTED_SHARE
        self.informative = self.seen >= _SIGNS_MIN and self.apart_share > required


class FirstTokenChoice:
    """The choice for one pool.

    Args:
        setting: with "work", informative signs are timed; with "any", only where a pool hides its reasoning; with
            "answer", never.

    Attributes:
        times_work: signs of work are timed where they are informative.
        hidden_share: share of recent answers with reasoning that was not shown.
        hides_reasoning: True if `hidden_share` is so large that content usually follows hidden reasoning.
        signs: the signs of each replica's name and API.
    """

    def __init__(self, setting: FirstToken) -> None:
        self._setting = setting
        self._answers = 0
        self.times_work = False
        self.hidden_share = 0.0
        self.hides_reasoning = False
        self.signs: dict[tuple[str, Api | None], Signs] = {}

    def by_work(self, replica: str, api: Api | None) -> bool:
        """Return True if the first token of a replica's answers in an API is a sign of work."""
        signs = self.signs.get((replica, api)) if self.times_work else None
        return signs is not None and signs.informative

    def shows_work(self, after_headers_s: float) -> bool:
        """Return True if a sign shows work before anything is known about signs and reasoning."""
        return not self._answers and self._setting != "answer" and after_headers_s > TOGETHER_S

    def is_sometimes_by_work(self, replica: str) -> bool:
        """Return True if `by_work` is true of one of a replica's APIs."""
        return self.times_work and any(signs.informative for _, signs in self.signs_of(replica))

    def signs_of(self, replica: str) -> Iterator[tuple[Api | None, Signs]]:
        """Yield the APIs in which a replica has shown signs of work, with the signs."""
        for api in _APIS:
            if (signs := self.signs.get((replica, api))) is not None:
                yield api, signs

    def add_sign(self, replica: str, api: Api | None, after_headers_s: float) -> bool:
        """Add the first sign of an attempt; return True if `times_work` has changed."""
        signs = self.signs.setdefault((replica, api), Signs())
        signs.add(after_headers_s)  # shared with the choice that a reload has replaced, which may have changed them
        return signs.informative is not self.times_work and self._choose()

    def add_usage(self, usage: Usage | None) -> bool:
        """Add a complete stream, see `add_answer`; a stream without token counts shows nothing.

        Not for an answer in one piece, which has no events with reasoning, nor for a broken answer, which may have the
        token counts of its start.
        """
        return (
            usage is not None and usage.completion_tokens is not None and self.add_answer(hidden=usage.hidden_reasoning)
        )

    def add_answer(self, *, hidden: bool) -> bool:
        """Add a complete answer with reported usage; return True if `times_work` has changed.

        Args:
            hidden: True if the answer's tokens include reasoning that was not shown.
        """
        self._answers = min(self._answers + 1, _SEEN_MAX)
        self.hidden_share += (hidden - self.hidden_share) / self._answers
        self.hides_reasoning = self.hidden_share > _HIDDEN_SHARE_MAX
        return bool(self.signs) and not self.times_work and self._choose()

    def adopt_state(self, old: "FirstTokenChoice", stay: Collection[str]) -> bool:
        """Take over the state learned under another setting; return True if `times_work` has changed.

        Args:
            stay: names of unchanged replicas.
        """
        self._answers, self.times_work = old._answers, old.times_work
        self.hidden_share, self.hides_reasoning = old.hidden_share, old.hides_reasoning
        self.signs = {key: signs for key, signs in old.signs.items() if key[0] in stay}
        return self._choose()

    @property
    def state(self) -> FirstTokenState:
        """The choice as plain values."""
        signs = [SignsState(*key, each.seen, each.apart_share, each.informative) for key, each in self.signs.items()]
        return FirstTokenState(self._answers, self.hidden_share, self.times_work, signs)

    def restore(self, state: FirstTokenState, stay: Collection[str]) -> bool:
        """Take over a recorded state; return True if `times_work` is different from the recorded one.

        Args:
            stay: names of unchanged replicas.
        """
        self._answers, self.times_work, self.hidden_share = state.answers, state.times_work, state.hidden_share
        self.hides_reasoning = self.hidden_share > _HIDDEN_SHARE_MAX
        for recorded in state.signs:
            if recorded.replica in stay:
                signs = self.signs[recorded.replica, recorded.api] = Signs()
                signs.seen, signs.apart_share = recorded.seen, recorded.apart_share
                signs.informative = recorded.informative
        return self._choose()

    def _choose(self) -> bool:
        """Update `times_work`; return True if it has changed.

        Once begun, signs are timed for as long as they are informative: a share of hidden reasoning near its limit must
        not restart the learning again and again.
        """
        wanted = self._setting == "work" or (self._setting == "any" and (self.times_work or self.hides_reasoning))
        times_work = wanted and any(signs.informative for signs in self.signs.values())
        changed, self.times_work = times_work is not self.times_work, times_work
        return changed
