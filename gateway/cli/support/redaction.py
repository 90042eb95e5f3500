"""Removes secrets from texts: known values, and what has the form of a credential. Pure. No units."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pydantic import BaseModel, SecretStr

_CHARS_MIN: Final = 6  # a shorter value would also match unrelated text
_MASK: Final = "****"
_SETTINGS: Final = frozenset({"key", "previous_key", "admin_key", "api_key", "password", "proxy"})
_VARIABLE: Final = re.compile(r"(?i)key|token|secret|passw|credential|auth")
_FORMS: Final = (  # form of a credential -> its replacement; bounded, so that a long word is not read again and again
    (re.compile(r"(\b\w+://)[^/\s\"'<>@]*@"), rf"\1{_MASK}@"),
    (re.compile(r"(\b\w+://[^\s\"'<>?#]{0,2000})[?#][^\s\"'<>]*"), rf"\1?{_MASK}"),
    (re.compile(r"(?i)\b(bearer|basic)(\s+|%20)[\w.~+/=-]{6,}"), rf"\1 {_MASK}"),
    (
        re.compile(r"(?i)\b(authorization)(\\?[\"']?\s*[:=]\s*\\?[\"']?)(?:[\w-]+ +)?[^\s\"'\\,}]{4,}"),
        rf"\1\2{_MASK}",
    ),
    (
        re.compile(
            r"(?i)\b((?:x-)?(?:goog-)?api[-_]?key|password|passwd|secret)(\\?[\"']?\s*[:=]\s*\\?[\"']?)[^\s\"'\\,}]{4,}"
        ),
        rf"\1\2{_MASK}",
    ),
    (re.compile(r"\beyJ[\w-]{8,2000}\.[\w-]+\.[\w-]*"), _MASK),
    (re.compile(r"(?i)\b(?:sk|pk|rk|ak|gsk|xai|hf|ghp|gho|pat|nvapi)[-_][\w*-]{8,}|\bttft-[0-9a-f]{32}\b"), _MASK),
    (re.compile(r"\b(?:AIza|AKIA|ASIA)[\w-]{10,}"), _MASK),
)


class Redaction:
    """Removes secrets from texts.

    Args:
        secrets: known secrets.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {text for secret in secrets for text in (secret, json.dumps(secret)[1:-1]) if len(secret) >= _CHARS_MIN}
        longest_first = sorted(known, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def __call__(self, text: str) -> str:
        """Return the text with `****` instead of each secret."""
        if self._known is not None:
            text = self._known.sub(_MASK, text)
        for form, replacement in _FORMS:
            text = form.sub(replacement, text)
        return text


def secrets_in(value: object, *, inside: bool = False) -> Iterator[str]:
    """Yield the secrets of settings, or of the data of a configuration file that may be invalid.

    Args:
        inside: True for a value of a setting that is secret.
    """
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, BaseModel):
        yield from secrets_in([getattr(value, name) for name in type(value).model_fields])
    elif isinstance(value, str) and inside:
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from secrets_in(each, inside=inside or name in _SETTINGS or name == "headers")
    elif isinstance(value, list | tuple):
        for each in value:
            yield from secrets_in(each, inside=inside)


def secrets_of(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of environment variables whose names are those of secrets."""
    yield from (value for name, value in env.items() if _VARIABLE.search(name) and not name.endswith("_FILE"))
