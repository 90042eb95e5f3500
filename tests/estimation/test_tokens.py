"""Token estimates without a vocabulary: close to real tokenizers once usage was reported, bounded, robust.

The real tokenizers come from a package that is installed for tests only; without it their tests are skipped.
"""

import base64
import json
import statistics
from collections.abc import Callable
from importlib import import_module, resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.estimation.tokens import TextTokens, TokenScale, text_tokens

TEXTS = {
    path.stem: path.read_text(encoding="utf-8").split("\n====\n")
    for path in sorted((Path(__file__).parent / "texts").glob("*.txt"))
}
TEMPLATE_TOKENS = 4  # a chat template's tokens for one short message


def messages(text: str, *, ascii_only: bool = False) -> bytes:
    """A text as clients send it."""
    message = [{"role": "user", "content": text}]
    return json.dumps(message, ensure_ascii=ascii_only, separators=(",", ":")).encode()


def byte_pairs() -> Callable[[str], int]:
    """A byte-pair tokenizer of 131,000 entries, made for many languages."""
    data = resources.files(import_module("mistral_common")) / "data" / "tekken_240911.json"
    tekken = json.loads(data.read_text(encoding="utf-8"))
    config = tekken["config"]
    size = config["default_vocab_size"] - config["default_num_special_tokens"]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in tekken["vocab"][:size]}
    encoding = import_module("tiktoken").Encoding(
        "tekken", pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={}
    )
    return lambda text: len(encoding.encode_ordinary(text))


def sentence_pieces() -> Callable[[str], int]:
    """A SentencePiece tokenizer of 32,000 entries, made for English."""
    data = resources.files(import_module("mistral_common")) / "data" / "mistral_instruct_tokenizer_240323.model.v3"
    processor = import_module("sentencepiece").SentencePieceProcessor(model_proto=data.read_bytes())
    return lambda text: len(processor.encode(text))


@pytest.fixture(scope="module", params=[byte_pairs, sentence_pieces])
def count(request: pytest.FixtureRequest) -> Callable[[str], int]:
    """Counts tokens as a real tokenizer does."""
    for package in ("mistral_common", "tiktoken", "sentencepiece"):
        pytest.importorskip(package)
    make: Callable[[], Callable[[str], int]] = request.param
    return make()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("half", [0, 1])
def test_estimates_are_within_fifteen_per_cent(count: Callable[[str], int], half: int, *, ascii_only: bool) -> None:
    """After usage was reported for half of the texts, the median error per kind of text on the others is <= 15 %."""
    scale = TokenScale()
    taught = [text for texts in TEXTS.values() for text in texts[half::2]]
    for text in taught * 5:
        scale.learn(text_tokens(messages(text, ascii_only=ascii_only)), count(text) + TEMPLATE_TOKENS)
    errors = {}
    for kind, texts in TEXTS.items():
        actual = [count(text) + TEMPLATE_TOKENS for text in texts[1 - half :: 2]]
        estimated = [scale.tokens(text_tokens(messages(text, ascii_only=ascii_only))) for text in texts[1 - half :: 2]]
        errors[kind] = statistics.median(abs(e / a - 1.0) for e, a in zip(estimated, actual, strict=True))
    assert {kind: error for kind, error in errors.items() if error > 0.15} == {}


def test_all_kinds_of_text_are_there() -> None:
    """The held-out texts cover what the estimate is meant for."""
    assert sorted(TEXTS) == ["cjk", "code", "english", "json", "mixed"]
    assert all(len(texts) >= 6 for texts in TEXTS.values())


@pytest.mark.parametrize("kind", sorted(TEXTS))
def test_escapes_count_like_the_characters_they_stand_for(kind: str) -> None:
    r"""A body in which every wide character is written \uXXXX is estimated like the same body in UTF-8."""
    for text in TEXTS[kind]:
        plain, escaped = (sum(text_tokens(messages(text, ascii_only=ascii_only))) for ascii_only in (False, True))
        assert escaped == pytest.approx(plain, rel=0.15)


def test_wide_text_is_summed_apart() -> None:
    """English weighs nothing wide, Chinese nearly only so."""
    english, chinese = (text_tokens(messages(TEXTS[kind][0])) for kind in ("english", "cjk"))
    assert english.wide == 0.0
    assert chinese.wide > 0.9 * sum(chinese)


def test_a_long_text_is_judged_by_pieces() -> None:
    """A text repeated to 1 MB weighs as often as much as it was repeated, within 10 %."""
    text = "\n".join(text for kind in ("english", "code", "json") for text in TEXTS[kind])
    repeated = 1_000_000 // len(text)
    once, often = sum(text_tokens(messages(text))), sum(text_tokens(messages(text * repeated)))
    assert often == pytest.approx(repeated * once, rel=0.1)


def test_inline_images_are_not_read_as_text() -> None:
    """An image weighs 800 tokens whatever its size; the text around it is still counted."""
    around = b'[{"type":"image_url","image_url":{"url":"data:image/png"}},{"type":"text","text":"what is this?"}]'
    image = around.replace(b"image/png", b"image/png;base64," + b"iVBORw0KGgo" * 10_000)
    images = (image * 3, around * 3)
    assert sum(text_tokens(images[0])) == pytest.approx(2_400 + sum(text_tokens(images[1])), rel=0.02)


@given(st.binary(max_size=600) | st.text(max_size=300).map(lambda text: messages(text)))
def test_any_bytes_have_an_estimate(body: bytes) -> None:
    """Whatever the bytes: no error, nothing negative, and not more than two and a half tokens a byte."""
    text = text_tokens(body)
    assert text.plain >= 0.0
    assert text.wide >= 0.0
    assert sum(text) <= 3.0 * len(body) + 4.0 + 800.0 * body.count(b";base64,")


@pytest.mark.parametrize("factors", [(1.0, 1.0), (1.4, 1.5), (0.8, 0.6)])
def test_the_scale_learns_both_factors(factors: tuple[float, float]) -> None:
    """From usage of plain, wide and mixed texts in turn, both factors are found."""
    scale = TokenScale()
    texts = [TextTokens(1_000.0, 0.0), TextTokens(100.0, 800.0), TextTokens(500.0, 500.0)]
    for n in range(300):
        text = texts[n % 3]
        scale.learn(text, round(factors[0] * text.plain + factors[1] * text.wide))
    assert (scale.plain, scale.wide) == pytest.approx(factors, rel=0.02)


def test_plain_traffic_leaves_the_wide_factor_alone() -> None:
    """A factor moves only by texts that it has a part in."""
    scale = TokenScale()
    wide = scale.wide
    for _ in range(100):
        scale.learn(TextTokens(1_000.0, 0.0), 2_000)
    assert scale.wide == wide
    assert scale.plain == pytest.approx(2.0, rel=0.02)


def test_outliers_and_nonsense_move_little() -> None:
    """One hidden prompt of 100,000 tokens moves a factor by 2.5 % of the weight; no usage and no text move nothing."""
    scale = TokenScale()
    before = scale.plain
    scale.learn(TextTokens(1_000.0, 0.0), 0)
    scale.learn(TextTokens(0.0, 0.0), 50)
    assert scale.plain == before
    scale.learn(TextTokens(1_000.0, 0.0), 100_000)
    assert scale.plain == pytest.approx(before + 0.025)
    for _ in range(10_000):
        scale.learn(TextTokens(1_000.0, 1_000.0), 100_000)
    assert max(scale.plain, scale.wide) <= 3.0
