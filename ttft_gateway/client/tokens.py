"""The tokens of targets: fetched on a thread, renewed while requests are sent, shared by equal sources.

There is no timer and no lasting thread: a request that finds a renewal due starts it, and uses the token that there is.
A request waits for a token only if no target has one. A forked child keeps the tokens. Times are seconds of a monotonic
clock.
"""

import logging
import math
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

from ttft_gateway.apis.clouds import region_of
from ttft_gateway.credentials.renewal import Renewal
from ttft_gateway.credentials.sources import (
    CLOUDS,
    FILE_EVERY_S,
    FIRST_S_MAX,
    OPTION_OF,
    Fetch,
    Source,
    SourceName,
    fault_of,
    fetch_of,
    package_fault,
    source_at,
)
from ttft_gateway.credentials.token import Token

if TYPE_CHECKING:
    from ttft_gateway.client.hedger import ClientAttempt
    from ttft_gateway.client.racing import Entrant, Opened
    from ttft_gateway.client.targets import Credential, Target
    from ttft_gateway.pool.pool import Pool

_REJECTED: Final = frozenset({401, 403})  # statuses of a token that has ended; 403 at Bedrock
_R = TypeVar("_R")
_log: Final = logging.getLogger("ttft_gateway")


class TargetToken:
    """The token of one source; any thread may use it.

    Args:
        source: the source.
        fetch: returns a token, and may wait; None: of the source.
        clock: returns seconds, never decreasing.

    Attributes:
        value: the last token; empty before the first.
        clock: the argument.
        is_bearer: True for a token of a cloud, which is sent as a bearer token at each of its routes.
        is_cure: True if the token before it was rejected.
    """

    def __init__(self, source: Source, fetch: Fetch | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.source = source
        self.clock = clock
        self.value = ""
        self.is_bearer = source.name in CLOUDS
        self.is_cure = self._is_rejected = False
        self._fetch = fetch or fetch_of(source)
        self._renewal = Renewal(every_s=FILE_EVERY_S if source.name == "file" else math.inf)
        self.forget()

    def forget(self) -> None:
        """Forget a fetch under way: a forked child has no thread for it."""
        self._lock = threading.Lock()
        self._fetching: Future[None] | None = None

    def __repr__(self) -> str:
        return f"<TargetToken {self.source}>"

    def fault(self) -> str | None:
        """Return the reason for which there is no token, None if there is one; start a fetch that is due."""
        now_s = self.clock()
        with self._lock:
            renewal = self._renewal
            if now_s >= renewal.next_s and self._fetching is None:
                self._start(now_s)
            if renewal.usable(now_s) is not None:
                return None
            return renewal.fault or "its token has not arrived yet"

    def reject(self, sent_s: float) -> None:
        """Renew the token at once, and once a minute, if a request that was sent with it at a time was rejected."""
        with self._lock:
            if self._renewal.on_rejected(sent_s, self.clock()):
                self._is_rejected = True
        self.fault()

    async def send(self, entrant: "Entrant[Any, Any, _R]", attempt: "ClientAttempt") -> "Opened[_R]":
        """Send an attempt with the token; if the server rejects it, renew it and send the attempt once more.

        Raises:
            Exception: there is no token; the error of the client library for a connection that cannot be made.
        """
        racing = entrant.racing
        fault = self.fault()
        if fault is not None:
            await self._wait(entrant)
            fault = self.fault()
        if fault is not None:
            raise racing.unsent(f"nothing was sent to {attempt.label}: {fault}")
        sent_s, value = self.clock(), self.value
        opened = await racing.adapter.send(racing.request_to(entrant, attempt))
        if opened.status not in _REJECTED:
            return opened
        try:
            self.reject(sent_s)
            await self._wait(entrant)
            is_other = self.value != value
        except BaseException:
            await racing.adapter.close(opened)
            raise
        if not is_other or entrant.asked.api is None:  # its body may be one that can be sent once
            return opened
        await racing.adapter.close(opened)
        attempt.is_repeated = True
        return await racing.adapter.send(racing.request_to(entrant, attempt))

    async def _wait(self, entrant: "Entrant[Any, Any, Any]") -> None:
        """Wait for the end of the fetch under way, if there is one."""
        fetching, left_s = self._fetching, entrant.race.left_s()
        if fetching is not None:
            await entrant.racing.adapter.wait(fetching, FIRST_S_MAX if left_s is None else min(FIRST_S_MAX, left_s))

    def _start(self, now_s: float) -> None:
        fetching: Future[None] = Future()
        try:
            threading.Thread(target=self._run, args=(fetching,), name="ttft-token", daemon=True).start()
        except (RuntimeError, MemoryError):
            self._renewal.on_failure("no thread can be started", now_s, random.random())
        else:
            self._fetching = fetching

    def _run(self, fetching: "Future[None]") -> None:
        """Fetch a token, in a thread of its own."""
        found: Token | Exception
        try:
            found = self._fetch()
        except Exception as error:
            found = error
        fault = fault_of(found) if isinstance(found, Exception) else ""
        if fault is None:
            _log.error("the fetch of a token failed with %s", type(found).__name__)  # its text may contain a secret
            fault = "the fetch failed with an internal error"
        now_s, rand = self.clock(), random.random()
        with self._lock:
            if isinstance(found, Token):
                self._renewal.on_token(found, now_s, rand)
                self.value, self.is_cure, self._is_rejected = found.value, self._is_rejected, False
            else:
                self._renewal.on_failure(fault, now_s, rand)
            self._fetching = None
        fetching.set_result(None)


def use_tokens(pool: "Pool", targets: Mapping[str, tuple["Target | None", str]], now_s: float) -> None:
    """Lock the replicas of a pool that have no token, and unlock the replicas that have one again.

    Args:
        targets: targets by the names of the replicas.
        now_s: time of the pool's clock.
    """
    for replica in pool.replicas:
        target = targets[replica.name][0]
        token = None if target is None else target.token
        if token is None:
            continue
        fault = token.fault()
        if fault is not None:
            replica.lock(fault)
        elif replica.locked is not None or replica.secrets[:1] != (token.value,):
            replica.use_token(token.value, now_s, is_cure=token.is_cure)


def token_of(credential: "Credential", base_url: str, kind: str) -> TargetToken:
    """Return the token of a credential at a server; equal ones share a token.

    Raises:
        ValueError: an option is missing, or the source does not use it.
        TypeError: the command is one string.
        ModuleNotFoundError: a package is not installed.
    """
    name = credential.source
    if name not in get_args(SourceName):
        raise ValueError(f"credential is {name!r}; use one of {', '.join(get_args(SourceName))}")
    for option, user in OPTION_OF.items():
        given = getattr(credential, option)
        if given and name != user:
            raise ValueError(f"only the credential {user} uses {option}; remove it")
        if not given and name == user == option:
            raise ValueError(f"the credential {name} needs {option}; write Credential({name!r}, {option}=...)")
    if isinstance(credential.command, str):
        raise TypeError("the command of a credential is a string; use a list of the program and its arguments")
    region = credential.region or region_of(base_url)
    if name == "aws" and region is None:
        raise ValueError("a token of Bedrock is valid in one region; write Credential('aws', region='us-east-1')")
    fault = package_fault(name)
    if fault is not None:
        raise ModuleNotFoundError(fault)
    source = source_at(
        name, kind, command=credential.command, file=credential.file, profile=credential.profile, region=region
    )
    return _SHARED.get(source) or _SHARED.setdefault(source, TargetToken(source))


_SHARED: "weakref.WeakValueDictionary[Source, TargetToken]" = weakref.WeakValueDictionary()


def _after_fork() -> None:
    for token in list(_SHARED.values()):
        token.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
