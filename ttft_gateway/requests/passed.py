"""The requests that are passed on as bytes: which paths, which family of routes, and the model that a body names. Pure.

A path is passed on if it belongs to a family of a closed list and consists of plain segments: letters, digits and
`_.:-`. So no escape, `..` or route of an account's administration reaches a replica. Units: bytes.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple, get_args

from ttft_gateway.apis.base import Api
from ttft_gateway.requests import errors as inbound_errors
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.requests.request import parse

Family = Literal[
    "audio",
    "images",
    "videos",
    "files",
    "uploads",
    "batches",
    "vector_stores",
    "fine_tuning",
    "evals",
    "containers",
]
"""Routes below one name, such as all of `/v1/files`."""

STATELESS: Final[frozenset[Family]] = frozenset(["audio", "images"])
"""Families of requests that leave nothing at a replica, so that any replica can take each, by the model they name."""

_SEGMENT: Final = r"/(?!\.{1,2}(?:[/?]|$))[A-Za-z0-9_.:-]{1,256}"
_families: Final = "|".join(get_args(Family))
_target = re.compile(
    rf"/v1(?P<path>(?:/messages(?=/batches\b))?/(?P<family>{_families})(?:{_SEGMENT}){{0,8}})(?P<query>\?[!\"$-~]*)?".encode()
).fullmatch
_boundary = re.compile(
    rb'(?i)multipart/form-data\s*;.*?boundary="?([0-9A-Za-z\'()+_,./:=? -]{1,70}?)"?\s*(?:;|$)'
).match
_model_part = re.compile(
    rb'(?i)\r\ncontent-disposition:[ \t]*form-data[ \t]*;[ \t]*name="?model"?[ \t]*\r\n(?:[^\r\n]+\r\n)*\r\n'
).match
_any_model_part = re.compile(  # as a server may read it that is less strict
    rb'(?i)(?:\r\n[^\r\n]+)*?\r\ncontent-disposition:[^\r\n]*?[; \t]name\*?[ \t]*=[ \t]*"?model"?[ \t]*(?:;|\r\n)'
).match
_PARTS_MAX: Final = 1_000
_NAME_BYTES_MAX: Final = 256


class PassedTarget(NamedTuple):
    """The target of a request that is passed on.

    Attributes:
        family: the family of its path.
        path: path below `/v1`, with its slash.
        query: query with its question mark; empty for none.
    """

    family: Family
    path: bytes
    query: bytes


class NamedModel(NamedTuple):
    """The model that a body names.

    Attributes:
        name: public name.
        body: the body.
        at: place of the name in the body; None if it names none.
        is_quoted: True if the place has a JSON string.
    """

    name: str | None
    body: bytes
    at: tuple[int, int] | None = None
    is_quoted: bool = False


def target_of(target: bytes) -> PassedTarget | None:
    """Return the parts of a target that may be passed on, None for any other."""
    found = _target(target)
    if found is None:
        return None
    (family,) = (each for each in get_args(Family) if each.encode() == found["family"])
    return PassedTarget(family, found["path"], found["query"] or b"")


def named_model(
    body: bytes, by_name: Mapping[bytes, bytes], default_model: str | None, bounds: NumberLimits
) -> NamedModel:
    """Return the model that a JSON object or a form names; other bodies, and empty ones, name none.

    Args:
        by_name: headers of the request, by names in lower case.
        default_model: model of a JSON object without `model`.

    Raises:
        InvalidRequest: the body is declared as JSON and is none, or names no model; or a form names several, or one
            that is too long, or has too many parts.
    """
    media = by_name.get(b"content-type", b"application/json")
    if not body:
        return NamedModel(None, body)
    if media.partition(b";")[0].strip().lower().endswith((b"/json", b"+json")):
        call = parse(Api.MODERATIONS, body, (), bounds, frozenset(), default_model).call
        return NamedModel(call.model, call.body, call.spans["model"], is_quoted=True)
    boundary = _boundary(media)
    found = NamedModel(None, body)
    for start, end in () if boundary is None else _parts(body, b"--" + boundary[1]):
        if not _any_model_part(body, start, end):
            continue
        head = _model_part(body, start, end)
        if head is None or found.at is not None:  # the replica could read another model than the key may use
            raise inbound_errors.form_models()
        value = body[head.end() : end]
        if len(value) > _NAME_BYTES_MAX:
            raise inbound_errors.form_model(len(value), _NAME_BYTES_MAX)
        found = NamedModel(value.decode("utf-8", "replace"), body, (head.end(), end))
    return found


def _parts(body: bytes, delimiter: bytes) -> Iterator[tuple[int, int]]:
    """Yield the place of each part of a form, its headers included, without the line end before the next delimiter."""
    start = 0 if body.startswith(delimiter) else body.find(b"\r\n" + delimiter) + 2
    for _ in range(_PARTS_MAX):
        begin = start + len(delimiter)
        end = body.find(b"\r\n" + delimiter, begin)
        if end < 0:
            return
        yield begin, end
        start = end + 2
    raise inbound_errors.form_parts(_PARTS_MAX)
