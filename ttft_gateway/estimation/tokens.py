"""Estimates the tokens of a prompt without a vocabulary: weights of pairs of adjacent bytes, scaled by reported usage.

A tokenizer's count is close to a sum over features of the text: starts of words and numbers, humps in camelCase,
punctuation, runs of spaces, characters by script. Each feature shows in two adjacent bytes, so a weight for each pair
of classes of bytes is enough. Words, marks (digits, punctuation, humps) and wide characters have separate sums, because
tokenizers differ in each; three factors per model, learned from reported usage, scale them. Independent of the
request's format except for JSON strings. All bytes are read by functions in C.

Units: tokens, bytes. The weights were fitted to the mean of four tokenizers of 100,000 to 200,000 entries on technical
prose, code, JSON and CJK texts; errors for other scripts are larger until usage has been reported.
"""

from typing import Annotated, Final
from zlib import adler32

import msgspec

from ttft_gateway.estimation.fit import FitState, RelativeFit, Triple

_SAMPLE_BYTES: Final = 4_096  # number of bytes sampled from a longer text,
_PIECES: Final = 16  # in this number of pieces
_IMAGE: Final = b";base64,"
_SEMICOLON, _BACKSLASH = 59, 92
_SEMICOLONS_MAX: Final = 64  # looked at one by one for an image; a search for one byte takes a fortieth of the time
_IMAGE_TOKENS: Final = 800.0  # providers count an image by its tiles, not by the length of its data
_IMAGES_MAX: Final = 32
_OUTLIER: Final = 3.0  # times the estimate: caused by a hidden prompt or an image, not by the tokenizer
_PRIOR_REPORTS: Final = 1.0  # weight of the prior factor 1, in reports
_REFIT: Final = 8  # reports between two fits, after the first eight
_LEARNED_REPORTS: Final = 1_000  # reports after which only one in eight is used
_FACTOR_MIN: Final = 0.3
_FACTOR_MAX: Final = 3.0

# Classes of bytes; the second byte of a character and later ones are in no class.
_OTHER, _LOWER, _UPPER, _DIGIT, _SPACE, _ESCAPE, _PUNCTUATION = range(7)
_TWO_BYTE: Final = 7  # first bytes of two: Latin with accents, Greek, Cyrillic, Hebrew, Arabic
_KANA, _HAN, _HANGUL = 8, 9, 10
_THREE_BYTE: Final = 11  # Indic, Thai, typographic punctuation, full width
_FOUR_BYTE: Final = 12  # emoji
_UNIT: Final = 100  # weights are hundredths of a token
_FACTOR: Final = 2.0 / _UNIT  # every second pair is read
_WIDE: Final = {_TWO_BYTE: 20, _KANA: 78, _HAN: 94, _HANGUL: 88, _THREE_BYTE: 59, _FOUR_BYTE: 250}
_WEIGHT_MAX: Final = 255  # no pair in UTF-8 has more: no character follows the first byte of a character
_ADLER_MAX, _ADLER_MASK = 65_520, 0xFFFF


TextTokens = Triple
"""Weight of a text before a model's factors: words, marks and wide characters."""


class TokenScaleState(msgspec.Struct, frozen=True):
    """A scale as plain values: the number of reports of usage, and the sums of their fit."""

    reports: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    fit: FitState


class TokenScale:
    """The factors of one model's tokenizer, learned from the usage it reports."""

    def __init__(self) -> None:
        self.factors = (1.0, 1.0, 1.0)
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
            ValueError: the sums are not sums of samples; nothing was taken over.
        """
        fit = RelativeFit.restored(state.fit)
        self.factors = _factors(fit)
        self._fit, self._reports = fit, state.reports

    def tokens(self, text: TextTokens) -> float:
        """Return the expected prompt tokens."""
        words, marks, wide = text
        by_words, by_marks, by_wide = self.factors
        return by_words * words + by_marks * marks + by_wide * wide

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


def _factors(fit: RelativeFit) -> Triple:
    words, marks, wide = (min(_FACTOR_MAX, max(_FACTOR_MIN, factor)) for factor in fit.solve_near_one(_PRIOR_REPORTS))
    return words, marks, wide


def text_tokens(body: bytes) -> TextTokens:
    """Weigh the raw bytes of JSON that holds a prompt: the messages, and the tools if there are any.

    Reads at most 4 kB; a longer text is sampled in 16 pieces. Inline images count as 800 tokens each.
    """
    images = 0
    if _SEMICOLON in body and _has_image(body):
        body, images = _without_images(body)
    factor = _FACTOR
    if len(body) > _SAMPLE_BYTES:
        factor = 2.0 * len(body) / _SAMPLE_BYTES / _UNIT
        body = _sample(body)
    is_ascii = body.isascii()
    if is_ascii and _BACKSLASH in body and body.find(b"\\u") >= 0:  # a search for one byte is 20 times as fast
        body = body.decode("raw_unicode_escape", "replace").encode("utf-8", "surrogatepass")
        is_ascii = False
    size = len(body)
    # A byte for every second pair of bytes: the class of the first + 16 * the class of the second. A shift of the whole
    # text, as one number, moves each class into the byte of the one before it.
    classes = int.from_bytes(body.translate(_CLASS), "little")
    pairs = (classes | classes >> 4).to_bytes(size, "little")[: size - 1 : 2]
    words, marks = pairs.translate(_WORDS), pairs.translate(_MARKS)
    if size < _FEW_BYTES:
        word_sum, mark_sum = adler32(words, 0) & _ADLER_MASK, adler32(marks, 0) & _ADLER_MASK  # see `_sum`
    else:
        word_sum, mark_sum = _sum(words, _WORDS_MAX), _sum(marks, _MARKS_MAX)
    wide_sum = 0 if is_ascii else _sum(pairs.translate(_WIDES), _WEIGHT_MAX)
    return word_sum * factor + images * _IMAGE_TOKENS, mark_sum * factor, wide_sum * factor


def _sample(body: bytes) -> bytes:
    """Return pieces of a long text, 4 kB in all."""
    piece, gap = _SAMPLE_BYTES // _PIECES, len(body) // _PIECES
    return b"".join([body[start : start + piece] for start in range(0, gap * _PIECES, gap)])


def _sum(weights: bytes, most: int) -> int:
    """Add up bytes of at most `most`: the lower half of Adler-32 is their sum, if it is below 65,521."""
    size = _ADLER_MAX // most
    return sum([adler32(weights[at : at + size], 0) & _ADLER_MASK for at in range(0, len(weights), size)])


def _has_image(body: bytes) -> bool:
    """Return True if a body has an inline image; most texts have few semicolons."""
    at = body.find(b";")
    for _ in range(_SEMICOLONS_MAX):
        if at < 0 or body.startswith(_IMAGE, at):
            return at >= 0
        at = body.find(b";", at + 1)
    return at >= 0 and body.find(_IMAGE, at) >= 0


def _without_images(body: bytes) -> tuple[bytes, int]:
    """Cut the data of inline images out of a body; searches for the first 32 only."""
    pieces = []
    start = images = 0
    while images < _IMAGES_MAX and (position := body.find(_IMAGE, start)) >= 0:
        images += 1
        pieces.append(body[start:position])
        end = body.find(b'"', position)
        start = end if end >= 0 else len(body)
    pieces.append(body[start:])
    return b"".join(pieces), images


def _class(byte: int) -> int:
    """Return the class of a byte of UTF-8."""
    if byte < 0x80:
        letter = chr(byte)
        special = {" ": _SPACE, "\\": _ESCAPE}
        if letter.isalnum():
            return _DIGIT if letter.isdigit() else _UPPER if letter.isupper() else _LOWER
        return special.get(letter, _PUNCTUATION)
    starts = (0xC0, _TWO_BYTE), (0xE0, _THREE_BYTE), (0xE3, _KANA), (0xE4, _HAN), (0xEA, _HANGUL), (0xEE, _THREE_BYTE)
    reached = [kind for start, kind in (*starts, (0xF0, _FOUR_BYTE)) if byte >= start]
    return reached[-1] if reached else _OTHER


def _weigh(first: int, second: int) -> tuple[int, int, int]:
    """Return the weights of a pair of classes for words, marks and wide characters, in hundredths of a token."""
    words, marks = {_SPACE: 29, _LOWER: 2, _UPPER: 2}.get(first, 0), 0
    if second in (_LOWER, _UPPER) and first not in (_LOWER, _UPPER, _TWO_BYTE):
        words += 66  # a word starts
    elif first == second == _SPACE:
        words = 2  # the next word's token includes one space, further spaces are merged
    if first == _DIGIT:
        marks = 20
    elif first == _PUNCTUATION:
        marks = {_PUNCTUATION: 12, _SPACE: 85}.get(second, 75)  # runs are merged
    elif first == _ESCAPE:
        marks = 12
    if second == _DIGIT and first in (_LOWER, _UPPER, _SPACE, _ESCAPE, _PUNCTUATION):
        marks += 149  # a number starts
    elif second == _UPPER and first in (_LOWER, _UPPER):
        marks = 138 if first == _LOWER else 12  # a hump
    # Every second pair of a two-byte script may begin alike, so both of its bytes count half.
    wide = _WIDE.get(first, 0) + (20 if second == _TWO_BYTE else 0)
    return words, marks, min(_WEIGHT_MAX, wide)


_CLASS: Final = bytes(map(_class, range(256)))
_WORDS, _MARKS, _WIDES = map(bytes, zip(*[_weigh(pair % 16, pair // 16) for pair in range(256)], strict=True))
_WORDS_MAX, _MARKS_MAX = max(_WORDS), max(_MARKS)
_FEW_BYTES: Final = 2 * (_ADLER_MAX // max(_WORDS_MAX, _MARKS_MAX))  # at most: the pairs make one sum
