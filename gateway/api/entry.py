"""A request in the limits of its key, from its head to its end. Units: seconds of the loop's clock, tokens."""

from typing import Final

import msgspec

from gateway.events import RequestEnded
from gateway.limits.caller_limits import CallerTicket, KeyLimiter, OverLimit
from gateway.race.context import Runtime

_SERVER_ERROR: Final = 500


class RequestSize(msgspec.Struct, frozen=True):
    """The estimated size of a request.

    Attributes:
        prompt_tokens: tokens of the prompt.
        answer_tokens: tokens of all its answers together.
        deadline_s: the caller's deadline, None if the client sent none.
    """

    prompt_tokens: float
    answer_tokens: float
    deadline_s: float | None = None


class Entry:
    """One request in its key's limits; closed once, whatever is called after that.

    Attributes:
        limiter: the key's limiter.
        ticket: the request's reservation in it; None while the fleet is asked for one.
    """

    __slots__ = ("_runtime", "limiter", "ticket")

    def __init__(self, limiter: KeyLimiter, ticket: CallerTicket | None, runtime: Runtime) -> None:
        self.limiter = limiter
        self.ticket = ticket
        self._runtime = runtime

    def reserve(self, size: RequestSize, now_s: float, *, anyway: bool = False) -> OverLimit | None:
        """Enter, unless that is done, and reserve the tokens; return the reason against it, or None."""
        over = self.enter(now_s, anyway=anyway)
        if self.ticket is None:
            return over
        return self.limiter.reserve(self.ticket, size.prompt_tokens, size.answer_tokens, now_s, anyway=anyway)

    def enter(self, now_s: float, *, anyway: bool = False) -> OverLimit | None:
        """Count the request, unless that is done; return the reason against it, or None."""
        if self.ticket is None:
            entered = self.limiter.enter(now_s, anyway=anyway)
            if isinstance(entered, OverLimit):
                return entered
            self.ticket = entered
        return None

    def reject(self, status: int) -> None:
        """Close the entry of a request without a permit; it counts unless the gateway itself failed (5xx)."""
        if self.ticket is not None:
            close = self.limiter.release if status >= _SERVER_ERROR else self.limiter.reject
            self._runtime.safely("admission", close, None, self.ticket, self._runtime.loop.time())

    def close(self, used_tokens: float | None) -> None:
        """Close the entry of a request with a permit; `used_tokens` is None if no replica received the request."""
        now_s = self._runtime.loop.time()
        if self.ticket is None:
            return
        if used_tokens is None:
            self._runtime.safely("admission", self.limiter.release, None, self.ticket, now_s)
        else:
            self._runtime.safely("admission", self.limiter.settle, None, self.ticket, used_tokens, now_s)


def used_tokens(event: RequestEnded, prompt_tokens: float) -> float:
    """Return the tokens to charge to the key: the reported usage, else the estimate of the prompt plus events seen."""
    usage = event.usage
    if usage is not None and usage.prompt_tokens is not None:
        return usage.prompt_tokens + (usage.completion_tokens or 0)
    return prompt_tokens + event.events if event.events else 0.0
