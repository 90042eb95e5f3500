"""Values are counted, and documents thinned, without being decoded."""

import json

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from hostile_answers import DOCUMENTS
from ttft_gateway.apis.json_values import count_values, is_light, thinned

_skip = msgspec.json.Decoder(msgspec.Raw).decode
_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=40)
)
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner), max_leaves=12
)
_PIECE = 16 * 1024


def _pieces(document: bytes, size: int = _PIECE) -> list[bytes]:
    return [document[at : at + size] for at in range(0, len(document), size)]


@given(_VALUES, st.sampled_from([None, 1]), st.booleans(), st.integers(0, 200))
def test_a_thinned_document_is_valid(value: object, indent: int | None, ascii_only: bool, at: int) -> None:
    """A document that is thinned piece by piece is still JSON, with the same keys at the top, wherever it was cut."""
    text = json.dumps({"first": 1, "many": [value] * 3_000, "last": {"a": [1]}}, indent=indent, ensure_ascii=ascii_only)
    document = text.encode("utf-8", "surrogatepass")
    outline = b"".join(map(thinned, [document[:at], *_pieces(document[at:])]))
    top = msgspec.json.decode(outline, type=dict[str, msgspec.Raw])
    assert (list(top), bytes(top["first"]), json.loads(bytes(top["last"]))) == (
        ["first", "many", "last"],
        b"1",
        {"a": [1]},
    )


@pytest.mark.parametrize("damage", [b"[1 2]", b"nul", b"{]", b"}", b"]]"])
def test_an_invalid_document_stays_invalid(damage: bytes) -> None:
    """A fault in the middle is not left out."""
    document = b'{"many":[%b,%b,%b]}' % (b",".join([b"[1]"] * 9_000), damage, b",".join([b"[2]"] * 9_000))
    outline = b"".join(map(thinned, _pieces(document)))
    with pytest.raises(msgspec.DecodeError):
        _skip(outline)


@pytest.mark.parametrize("name", sorted(set(DOCUMENTS) - {"chat: many keys", "chat: nested arrays"}))
def test_an_outline_is_small(name: str) -> None:
    """Of every shape but deep nesting and objects of many keys, which no server sends, little is left."""
    document = DOCUMENTS[name].make(2_000_000)
    outline = b"".join(map(thinned, _pieces(document, 128 * 1024)))
    _skip(outline)
    assert count_values(outline) < len(document) // 40


@pytest.mark.parametrize(
    ("document", "light"),
    [
        (b'{"a":1}', True),
        (b"[%b]" % b",".join([b"{}"] * 7_000), True),
        (b"[%b]" % b",".join([b"{}"] * 8_000), False),
        (b'["%b"]' % (b"a, b, [c] {d}" * 9_000), True),  # a text
        (b'["%b"]' % (b'\\",' * 90_000), True),
        (b'["%b"]' % (b'{\\"a\\":[1,2,3],' * 90_000), True),
        (b"{%b}" % b",".join([b'"a":1'] * 20_000), False),
        (b"[%b]" % b",".join([b'"%b"' % (b"x" * 100)] * 90_000), True),
    ],
)
def test_a_document_is_light_with_few_values_for_its_size(document: bytes, light: bool) -> None:
    """Punctuation in strings does not count."""
    assert is_light(document) is light
