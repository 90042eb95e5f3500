"""The rules of one client for requests to any HTTP API: which are safe, and which have comparable times. No I/O.

A request that is no call of an LLM API is learned by its endpoint: method, origin and the template of its path. A
template is given by a function, or learned: a segment that looks like an identifier, or that has had too many values at
its place, becomes `{}`. Whether an endpoint's times are learned apart is decided in `hedger.py`.

A rule of `HedgeConfig.safe` is a method and a path with the wildcards `*`, `?` and `[...]`: `POST /search/*`. The path
is the whole one, without the query, or begins with scheme and host.
"""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from ttft_gateway.client.config import First, HedgeConfig

PopulationName = tuple[str, str]
"""Origin, and method with path or API with model."""

_REMEMBERED_MAX: Final = 1024  # requests' addresses
_PATH_MAX: Final = 1024  # bytes of a path that is remembered
_PLACES_MAX: Final = 512  # of segments
_VALUES_MAX: Final = 32  # of the segments at one place: more are identifiers
_NAME_MAX: Final = 200  # characters of a path that identify a population
_ANY: Final = b"{}"
# compiled at the first use, because the time to import counts
_IDENTIFIER: Final = rb"""(?xis)
    \d+ | [0-9a-f]{8}-[0-9a-f-]{27} | (?=.*\d)[0-9a-f]{8,} | (?=(?:.*\d){3})[\w.~-]{12,} | .*[@%].* | .{41,}"""
_RULE: Final = r"(\*|[A-Z]+) (\*\S*|(?:https?://[^/\s]+)?/\S*)"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Addressed(msgspec.Struct, frozen=True):
    """The result of the rules for a method at an address.

    Attributes:
        population: population of the request's times.
        parent: population that it belongs to until its own times are known; None if it is its own.
        first: event that ends a race; None: the transport's.
        is_safe: True if the request may be sent twice.
    """

    population: PopulationName
    parent: PopulationName | None
    first: First | None
    is_safe: bool


class Rules:
    """The rules of one transport; each method may be called from any thread.

    Attributes:
        has_safe: True if rules for safe requests are set.

    Raises:
        ValueError: a rule has another form.
    """

    def __init__(self, config: HedgeConfig) -> None:
        self._key = config.key
        self._safe = _read(config.safe)
        self.has_safe = bool(self._safe)
        self._values: dict[bytes, set[bytes] | None] = {}  # by the template before them; None: too many
        self._known: dict[tuple[str, str, bytes], Addressed] = {}

    def of(self, method: str, origin: str, path: bytes) -> Addressed:
        """Apply the rules.

        Args:
            method: in upper case.
            origin: scheme, host and port.
            path: path with query.
        """
        if not callable(self._key):
            path = path.partition(b"?")[0]
        address = method, origin, path
        found = self._known.get(address)
        if found is None:
            found = self._apply(method, origin, path)
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            if len(path) <= _PATH_MAX:
                self._known[address] = found
        return found

    def _apply(self, method: str, origin: str, path: bytes) -> Addressed:
        plain = path.partition(b"?")[0]
        text = plain.decode("latin-1")
        whole = (origin.removesuffix(":") + text, text)
        first, is_safe = None, method in _SAFE
        for verb, pattern, event in self._safe:
            if verb in ("*", method) and any(fnmatchcase(each, pattern) for each in whole):
                first, is_safe = event, True
                break
        if self._key == "origin":
            return Addressed((origin, method), None, first, is_safe)
        if callable(self._key):
            url = origin.removesuffix(":") + path.decode("latin-1")
            return Addressed((origin, f"{method} {self._key(method, url)}"[:_NAME_MAX]), None, first, is_safe)
        name = f"{method} {self._template(origin, plain).decode('latin-1')}"[:_NAME_MAX]
        return Addressed((origin, name), (origin, method), first, is_safe)

    def _template(self, origin: str, path: bytes) -> bytes:
        """Return a path with `{}` in the place of identifiers."""
        template = origin.encode()
        for segment in path.split(b"/")[1:]:
            values = self._values.get(template, ())
            if values is None or re.fullmatch(_IDENTIFIER, segment):
                shown = _ANY
            else:
                shown = segment if segment in values else self._learn(template, segment)
            template += b"/" + shown
        return template[len(origin) :] or b"/"

    def _learn(self, template: bytes, segment: bytes) -> bytes:
        """Count a new segment at its place; return the segment, or `{}` if there have been too many."""
        if len(self._values) >= _PLACES_MAX:
            self._values.clear()
        values = self._values.setdefault(template, set())
        if values is not None and len(values) < _VALUES_MAX:
            values.add(segment)
            return segment
        self._values[template] = None
        self._known.clear()
        return _ANY


def _read(safe: Mapping[str, First]) -> list[tuple[str, str, First | None]]:
    found: list[tuple[str, str, First | None]] = []
    for rule, first in safe.items():
        parts = re.fullmatch(_RULE, rule)
        if parts is None:
            raise ValueError(f"a rule of safe is {rule!r}; use a method and a path, such as 'POST /search/*'")
        found.append((parts[1], parts[2], first))
    return found
