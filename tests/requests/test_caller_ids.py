"""The ids that a caller gives its request: which are taken, and which are dropped."""

import pytest

from ttft_gateway.requests.headers import caller_ids

_TRACE = "0af7651916cd43dd8448eb211c80319c"
_PARENT = f"00-{_TRACE}-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        ("5f0c7f0e-6a1d-4a43-9d3e-0a4b5c7a2f11", True),
        ("Root=1-67891233-abcdef012345678912345678", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("", False),
        ("two words", False),
        ("a\nb", False),
        ('a"b', False),
        ("\x1b[31m", False),
        ("é", False),
    ],
)
def test_request_id(sent: str, *, taken: bool) -> None:
    """An id is taken if it is short and visible ASCII without quotes or spaces."""
    assert caller_ids({b"x-request-id": sent.encode("latin-1")}).request_id == (sent if taken else None)


@pytest.mark.parametrize(
    ("parent", "trace"),
    [
        (_PARENT, _TRACE),
        (f" {_PARENT}\t", _TRACE),
        (f"cc-{_TRACE}-b7ad6b7169203331-01-later", _TRACE),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", None),
        (_PARENT.upper(), None),
        (f"00-{_TRACE}", None),
        ("00-1", None),
    ],
)
def test_trace_id(parent: str, trace: str | None) -> None:
    """The trace id comes from a valid `traceparent`."""
    assert caller_ids({b"traceparent": parent.encode()}).trace_id == trace


def test_without_ids() -> None:
    """A request without the headers has neither id; of a repeated header the last one counts."""
    assert caller_ids({b"host": b"x"}) == (None, None)
    repeated = [(b"x-request-id", b"a"), (b"x-request-id", b"b")]
    assert caller_ids(dict(repeated)).request_id == "b"
