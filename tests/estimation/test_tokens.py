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

from ttft_gateway.estimation.tokens import TokenScale, text_tokens

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

    def count_tokens(text: str) -> int:
        return len(processor.encode(text))

    return count_tokens


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
    """A body in which every wide character is written as its escape is estimated like the same body in UTF-8."""
    for text in TEXTS[kind]:
        plain, escaped = (sum(text_tokens(messages(text, ascii_only=ascii_only))) for ascii_only in (False, True))
        assert escaped == pytest.approx(plain, rel=0.15)


def test_parts_are_summed_apart() -> None:
    """English is mostly words and nothing wide, JSON mostly marks, Chinese nearly only wide."""
    english, marked, chinese = (text_tokens(messages(TEXTS[kind][0])) for kind in ("english", "json", "cjk"))
    assert english[2] == 0.0
    assert english[0] > 0.8 * sum(english)
    assert marked[1] > 0.5 * sum(marked)
    assert chinese[2] > 0.9 * sum(chinese)


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


@given(st.binary(max_size=600) | st.text(max_size=300).map(lambda text: json.dumps(text).encode()))
def test_any_bytes_have_an_estimate(body: bytes) -> None:
    """For any bytes there is no error, nothing negative, and at most four tokens a byte."""
    text = text_tokens(body)
    assert min(text) >= 0.0
    assert sum(text) <= 4.0 * len(body) + 800.0 * body.count(b";base64,")


def test_the_densest_text_does_not_overflow() -> None:
    """Parts share one integer: even a megabyte of the heaviest pairs stays in its own part."""
    for body, part in ((b"a " * 500_000, 0), (b"aB" * 500_000, 1), ("\U0001f600".encode() * 250_000, 2)):
        text = text_tokens(body)
        assert text[part] == max(text)


@pytest.mark.parametrize("factors", [(1.0, 1.0, 1.0), (1.2, 1.4, 1.5), (0.9, 0.8, 0.6)])
def test_the_scale_learns_all_factors(factors: tuple[float, float, float]) -> None:
    """From usage of different texts in turn, the factors of all parts are found."""
    scale = TokenScale()
    texts = [(900.0, 100.0, 0.0), (400.0, 600.0, 0.0), (20.0, 40.0, 600.0)]
    for n in range(1_000):
        text = texts[n % 3]
        scale.learn(text, round(sum(f * part for f, part in zip(factors, text, strict=True))))
    assert scale.factors == pytest.approx(factors, rel=0.03)


def test_plain_traffic_leaves_the_wide_factor_alone() -> None:
    """A factor moves only by texts that it has a part in."""
    scale = TokenScale()
    for _ in range(200):
        scale.learn((1_000.0, 0.0, 0.0), 2_000)
    assert scale.factors == pytest.approx((2.0, 1.0, 1.0), rel=0.02)


def test_outliers_and_nonsense_are_left_out() -> None:
    """No usage, no text, and three times more or less than estimated (a hidden prompt, an image) teach nothing."""
    scale = TokenScale()
    for text, prompt_tokens in (
        ((1_000.0, 0.0, 0.0), 0),
        ((0.0, 0.0, 0.0), 50),
        ((0.0, 0.0, 0.0), 0),
        ((1_000.0, 0.0, 0.0), 3_001),
        ((1_000.0, 0.0, 0.0), 333),
    ):
        scale.learn(text, prompt_tokens)
    assert scale.factors == (1.0, 1.0, 1.0)


def test_one_report_counts_half() -> None:
    """The first report has the same weight as the prior of 1."""
    scale = TokenScale()
    scale.learn((1_000.0, 0.0, 0.0), 2_000)
    assert scale.factors == pytest.approx((1.2, 1.0, 1.0), rel=0.01)


def test_factors_are_bounded() -> None:
    """Steadily growing reports end at 3."""
    scale = TokenScale()
    for n in range(1_000):
        scale.learn((1_000.0, 0.0, 0.0), 1_000 + 10 * n)
    assert scale.factors[0] == 3.0


RECORDED = {
    "cjk": (39.1, 27.09, 1437.76),
    "code": (739.01, 799.65, 0.0),
    "english": (757.43, 139.23, 0.0),
    "json": (381.19, 874.93, 0.0),
    "mixed": (249.88, 350.08, 390.32),
}


@pytest.mark.parametrize("kind", RECORDED)
def test_weights_equal_the_recorded_ones(kind: str) -> None:
    """The weights were fitted, and learned factors survive restarts: neither holds for other sums."""
    text = (Path(__file__).parent / "texts" / f"{kind}.txt").read_bytes()
    assert text_tokens(text) == pytest.approx(RECORDED[kind], abs=0.006)
    assert text_tokens(text * 3) == pytest.approx([3 * part for part in RECORDED[kind]], rel=0.1)


@given(text=st.text(max_size=2000))
def test_weights_add_up(text: str) -> None:
    """A text of an even number of bytes, doubled, has twice its weights, but for the pair where both meet."""
    data = text.encode() * 2
    assert text_tokens(data * 2) == pytest.approx([2 * part for part in text_tokens(data)], abs=6.0)
