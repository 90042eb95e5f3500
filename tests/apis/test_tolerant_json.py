"""JSON of servers and clients written in Python."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttft_gateway.apis.tolerant_json import as_count, dumps, loads

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_there_and_back(value: Any) -> None:
    """Written JSON is read as the same value, also by Python's own module, surrogates and large numbers included."""
    assert value == loads(dumps(value)) == json.loads(dumps(value))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"<html>", b"\xff", b'"\xff"', b"{'a':1}", b"[" * 100_000, b"9" * 5000, b'{"a":1}{"b":2}']
)
def test_no_json(data: bytes) -> None:
    """Data that is not JSON, or nested too deeply, is None and never an exception."""
    assert loads(data) is None


def test_what_python_accepts() -> None:
    """NaN, infinities, halves of surrogate pairs and a BOM are read as Python's json module reads them."""
    value = loads(b'[NaN, Infinity, "\\ud83d"]')
    assert isinstance(value, list)
    assert math.isnan(value[0])
    assert value[1:] == [math.inf, "\ud83d"]
    assert dumps(value[2]) == b'"\\ud83d"'
    assert dumps(value[0]) == b"null"


@pytest.mark.parametrize(
    ("value", "count"),
    [(0, 0), (7, 7), (7.0, 7), (10**9, 10**9), (-1, None), (0.5, None), (1e30, None), (10**400, None)]
    + [(value, None) for value in (True, "7", None, [7], math.nan, math.inf)],
)
def test_counts_of_tokens(value: object, count: int | None) -> None:
    """A value that no answer can have is no count: it would stay in metrics, quotas and bills."""
    assert as_count(value) == count
    assert not isinstance(as_count(value), bool)
