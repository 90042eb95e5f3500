"""Estimates the tokens of a prompt without a vocabulary: weights of pairs of adjacent bytes, scaled by reported usage.

A tokenizer's count is close to a sum over features of the text: starts of words and numbers, humps in camelCase,
punctuation, runs of spaces, characters by script. Each feature shows in two adjacent bytes, so one table look-up per
pair adds them up. Words, marks (digits, punctuation, humps) and wide characters have separate sums, because tokenizers
differ in each; three factors per model, learned from reported usage, scale them. Independent of the request's format
except for JSON strings.

Units: tokens, bytes. The weights were fitted to the mean of four tokenizers of 100,000 to 200,000 entries on technical
prose, code, JSON and CJK texts; errors for other scripts are larger until usage has been reported.
"""

from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.estimation.fit import FitState, RelativeFit

_SAMPLE_BYTES: Final = 8_192  # number of bytes sampled from a longer text,
_PIECES: Final = 16  # in this number of pieces
_IMAGE: Final = b";base64,"
_IMAGE_TOKENS: Final = 800.0  # providers count an image by its tiles, not by the length of its data
_IMAGES_MAX: Final = 32
_OUTLIER: Final = 3.0  # times the estimate: caused by a hidden prompt or an image, not by the tokenizer
_PRIOR_REPORTS: Final = 1.0  # weight of the prior factor 1, in reports
_REFIT: Final = 8  # reports between two fits, after the first eight
_LEARNED_REPORTS: Final = 1_000  # reports after which only one in eight is used
_FACTOR_MIN: Final = 0.3
_FACTOR_MAX: Final = 3.0

_PAIR: Final = np.dtype("<u2")
# A pair weighs less than 3 in each part and 4,096 are added up: below 2**21 hundredths.
_UNIT: Final = 100
_LANE_BITS: Final = 21
_LANE: Final = (1 << _LANE_BITS) - 1

_LETTERS: Final = np.r_[65:91, 97:123]
_UPPER: Final = np.r_[65:91]
_LOWER: Final = np.r_[97:123]
_DIGITS: Final = np.r_[48:58]
_SPACE: Final = np.array([32])
_ESCAPE: Final = np.array([92])
_PUNCTUATION: Final = np.setdiff1d(np.r_[:128], np.r_[_LETTERS, _DIGITS, _SPACE, _ESCAPE])
_TWO_BYTE: Final = np.r_[0xC0:0xE0]  # first bytes of two: Latin with accents, Greek, Cyrillic, Hebrew, Arabic
_KANA: Final = np.array([0xE3])
_HAN: Final = np.r_[0xE4:0xEA]
_HANGUL: Final = np.r_[0xEA:0xEE]
_THREE_BYTE: Final = np.array([0xE0, 0xE1, 0xE2, 0xEE, 0xEF])  # Indic, Thai, typographic punctuation, full width
_FOUR_BYTE: Final = np.r_[0xF0:0x100]  # emoji


class TextTokens(NamedTuple):
    """Weight of a text before a model's factors: words, marks and wide characters."""

    words: float
    marks: float
    wide: float


class TokenScaleState(msgspec.Struct, frozen=True):
    """A scale as plain values: the number of reports of usage, and the sums of their fit."""

    reports: Annotated[int, msgspec.Meta(ge=0)]
    fit: FitState


class TokenScale:
    """The factors of one model's tokenizer, learned from the usage it reports."""

    __slots__ = ("_fit", "_offered", "_reports", "factors")

    def __init__(self) -> None:
        self.factors = TextTokens(1.0, 1.0, 1.0)
        self._fit = RelativeFit()
        self._offered = 0
        self._reports = 0

    @property
    def state(self) -> TokenScaleState:
        """The scale as plain values."""
        return TokenScaleState(self._reports, self._fit.state)

    def restore(self, state: TokenScaleState) -> None:
        """Take over a recorded state.

        Raises:
            ValueError: the sums are not those of samples; nothing was taken over.
        """
        fit = RelativeFit.restored(state.fit)
        self.factors = _factors(fit)
        self._fit, self._reports = fit, state.reports

    def tokens(self, text: TextTokens) -> float:
        """Return the expected prompt tokens."""
        factors = self.factors
        return factors.words * text.words + factors.marks * text.marks + factors.wide * text.wide

    def learn(self, text: TextTokens, prompt_tokens: int) -> None:
        """Learn from the prompt tokens that the upstream reported for a text."""
        self._offered += 1
        if self._reports > _LEARNED_REPORTS and self._offered % _REFIT:
            return  # tokenizers do not change: one report in eight detects a new model under the name
        expected = self.tokens(text)
        if not expected / _OUTLIER <= prompt_tokens <= expected * _OUTLIER or not prompt_tokens:
            return
        self._fit.add(float(prompt_tokens), *text)
        self._reports += 1
        if self._reports <= _REFIT or self._reports % _REFIT == 0:
            self.factors = _factors(self._fit)


def _factors(fit: RelativeFit) -> TextTokens:
    fitted = fit.solve_near_one(_PRIOR_REPORTS)
    return TextTokens(*(min(_FACTOR_MAX, max(_FACTOR_MIN, factor)) for factor in fitted))


def text_tokens(body: bytes) -> TextTokens:
    """Weigh the raw bytes of JSON that holds a prompt: the messages, and the tools if there are any.

    Reads at most 8 kB; a longer text is sampled in 16 pieces. Inline images count as 800 tokens each.
    """
    images = 0
    if _IMAGE in body:
        body, images = _without_images(body)
    length = len(body)
    if length > _SAMPLE_BYTES:
        piece, gap = _SAMPLE_BYTES // _PIECES, length // _PIECES
        body = b"".join([body[start : start + piece] for start in range(0, gap * _PIECES, gap)])
    factor = 2.0 * length / max(1, len(body))  # every second pair is read
    if b"\\u" in body and body.isascii():
        body = body.decode("raw_unicode_escape", "replace").encode("utf-8", "surrogatepass")
    lanes = int(np.add.reduce(_WEIGHTS.take(np.frombuffer(body, _PAIR, len(body) // 2))))
    factor /= _UNIT
    words = (lanes & _LANE) * factor + images * _IMAGE_TOKENS
    return TextTokens(words, (lanes >> _LANE_BITS & _LANE) * factor, (lanes >> 2 * _LANE_BITS) * factor)


def _without_images(body: bytes) -> tuple[bytes, int]:
    """Cut the data of inline images out of a body; searches for the first 32 only."""
    kept = []
    start = images = 0
    while images < _IMAGES_MAX and (position := body.find(_IMAGE, start)) >= 0:
        images += 1
        kept.append(body[start:position])
        end = body.find(b'"', position)
        start = end if end >= 0 else len(body)
    kept.append(body[start:])
    return b"".join(kept), images


def _weights() -> NDArray[np.int64]:
    """Build the table of pair weights, by first byte + 256 * second byte, three parts packed in one integer."""
    table = np.zeros((3, 256, 256))  # [part, second byte, first byte]
    words, marks, wide = table
    words[:, _LETTERS] += 0.02
    words[np.ix_(_LETTERS, np.setdiff1d(np.r_[:256], np.r_[_LETTERS, _TWO_BYTE]))] += 0.66  # a word starts
    words[:, _SPACE] += 0.29
    words[_SPACE, _SPACE] -= 0.27  # the next word's token includes one space, the others are merged
    marks[:, _DIGITS] += 0.2
    marks[np.ix_(_DIGITS, np.setdiff1d(np.r_[:128], _DIGITS))] += 1.49  # a number starts
    marks[np.ix_(_UPPER, _LOWER)] += 1.38  # a hump
    marks[np.ix_(_UPPER, _UPPER)] += 0.12
    marks[:, _PUNCTUATION] += 0.75
    marks[np.ix_(_PUNCTUATION, _PUNCTUATION)] -= 0.63  # runs are merged
    marks[_SPACE, _PUNCTUATION] += 0.1
    marks[:, _ESCAPE] += 0.12
    for weight, group in ((0.78, _KANA), (0.94, _HAN), (0.88, _HANGUL), (0.59, _THREE_BYTE), (2.5, _FOUR_BYTE)):
        wide[:, group] += weight
    # Every second pair of a two-byte script may begin alike, so both of its bytes count half.
    wide[:, _TWO_BYTE] += 0.2
    wide[_TWO_BYTE, :] += 0.2
    units = np.rint(table * _UNIT).astype(np.int64)
    return np.asarray(units[0] | units[1] << _LANE_BITS | units[2] << 2 * _LANE_BITS).reshape(-1)


_WEIGHTS: Final = _weights()
