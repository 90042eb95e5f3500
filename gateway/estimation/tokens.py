"""How many tokens a prompt has, without a vocabulary: weights on pairs of neighbouring bytes, scaled by reported usage.

A tokenizer's count is close to a sum over what the text is made of: starts of words and numbers, humps in camelCase,
punctuation, runs of spaces, characters by script. All of these show in two neighbouring bytes, so one table look-up a
pair adds them up. Plain text and the wide characters are summed apart because tokenizers differ in both; two factors a
model, learned from reported usage, scale them. It must not know the request's format beyond JSON strings.

Units: tokens, bytes. The weights were fitted to the mean of four tokenizers of 100,000 to 200,000 entries.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_SAMPLE_BYTES: Final = 16_384  # a longer text is judged by so many of its bytes,
_PIECES: Final = 16  # taken in so many places
_IMAGE: Final = b";base64,"
_IMAGE_TOKENS: Final = 800.0  # providers count an image by its tiles, not by the text that carries it
_IMAGES_MAX: Final = 32
_SCALE_FIRST: Final = 1.1  # today's tokenizers, before one has reported
_STEP: Final = 0.05  # what a report corrects of its error
_ERROR_MAX: Final = 0.5  # more is a hidden prompt or an image, not the tokenizer
_SCALE_MIN: Final = 0.3
_SCALE_MAX: Final = 3.0

_LETTERS: Final = np.r_[65:91, 97:123]
_UPPER: Final = np.r_[65:91]
_LOWER: Final = np.r_[97:123]
_DIGITS: Final = np.r_[48:58]
_SPACE: Final = np.array([32])
_ESCAPE: Final = np.array([92])
_PUNCTUATION: Final = np.setdiff1d(np.r_[:128], np.r_[_LETTERS, _DIGITS, _SPACE, _ESCAPE])
_INNER: Final = np.r_[0x80:0xC0]  # UTF-8 continuation
_TWO: Final = np.r_[0xC0:0xE0]  # first bytes of two: Latin with accents, Greek, Cyrillic, Hebrew, Arabic
_KANA: Final = np.array([0xE3])
_HAN: Final = np.r_[0xE4:0xEA]
_HANGUL: Final = np.r_[0xEA:0xEE]
_THREE: Final = np.array([0xE0, 0xE1, 0xE2, 0xEE, 0xEF])  # Indic, Thai, typographic punctuation, full width
_FOUR: Final = np.r_[0xF0:0x100]  # emoji


class TextTokens(NamedTuple):
    """What a text weighs before a model's factors."""

    plain: float
    wide: float


class TokenScale:
    """One model's tokenizer, as two factors learned from what it reports."""

    __slots__ = ("plain", "wide")

    def __init__(self) -> None:
        self.plain = _SCALE_FIRST
        self.wide = _SCALE_FIRST

    def tokens(self, text: TextTokens) -> float:
        """Prompt tokens to expect."""
        return self.plain * text.plain + self.wide * text.wide

    def learn(self, text: TextTokens, prompt_tokens: int) -> None:
        """Take the prompt tokens that the upstream reported for a text."""
        weight = text.plain + text.wide
        if weight <= 0.0 or prompt_tokens <= 0:
            return
        plain, wide = text.plain / weight, text.wide / weight
        error = prompt_tokens / weight - self.plain * plain - self.wide * wide
        # Normalised least mean squares: both factors move by their parts in this text.
        step = _STEP * min(_ERROR_MAX, max(-_ERROR_MAX, error)) / (plain * plain + wide * wide)
        self.plain = min(_SCALE_MAX, max(_SCALE_MIN, self.plain + step * plain))
        self.wide = min(_SCALE_MAX, max(_SCALE_MIN, self.wide + step * wide))


def text_tokens(body: bytes) -> TextTokens:
    """Weigh the raw bytes of JSON that holds a prompt: the messages, and the tools if there are any.

    At most 16 kB are looked at; what is longer is judged by 16 pieces. Inline images count as 800 tokens each.
    """
    images = 0
    if _IMAGE in body:
        body, images = _without_images(body)
    length = len(body)
    if length > _SAMPLE_BYTES:
        piece, gap = _SAMPLE_BYTES // _PIECES, length // _PIECES
        body = b"".join([body[start : start + piece] for start in range(0, gap * _PIECES, gap)])
    factor = 2.0 * length / max(1, len(body))  # every second pair is looked at
    if b"\\u" in body and body.isascii():
        body = body.decode("raw_unicode_escape", "replace").encode("utf-8", "surrogatepass")
    weights = complex(np.add.reduce(_WEIGHTS.take(np.frombuffer(body, "<u2", len(body) // 2))))
    return TextTokens(max(0.0, weights.real) * factor + images * _IMAGE_TOKENS, max(0.0, weights.imag) * factor)


def _without_images(body: bytes) -> tuple[bytes, int]:
    """Cut the data of inline images out of a body; only the first 32 are looked for."""
    kept = []
    start = images = 0
    while images < _IMAGES_MAX and (found := body.find(_IMAGE, start)) >= 0:
        images += 1
        kept.append(body[start:found])
        end = body.find(b'"', found)
        start = end if end >= 0 else len(body)
    kept.append(body[start:])
    return b"".join(kept), images


def _weights() -> NDArray[np.complex64]:
    """The weight of each pair, by first byte + 256 * second byte; real for plain text, imaginary for wide."""
    table = np.zeros((256, 256), dtype=np.complex64)  # [second, first]
    first = {0.03: _LETTERS, 0.18: _DIGITS, 0.4: _SPACE, 0.7: _PUNCTUATION, 0.06: _ESCAPE}
    for weight, group in first.items():
        table[:, group] += weight
    wide = {0.67: _KANA, 0.86: _HAN, 0.71: _HANGUL, 0.53: _THREE, 2.5: _FOUR}
    for weight, group in wide.items():
        table[:, group] += 1j * weight
    # Text of two-byte characters would be seen in step: either all first bytes or none. Both sides count half.
    table[:, _TWO] += 0.22j
    table[_TWO, :] += 0.22j
    outside = np.setdiff1d(np.r_[:256], np.r_[_LETTERS, _TWO])
    pairs = (
        (0.49, outside, _LETTERS),  # a word starts
        (1.2, _LOWER, _UPPER),  # a hump
        (0.09, _UPPER, _UPPER),
        (1.39, np.setdiff1d(np.r_[:128], _DIGITS), _DIGITS),  # a number starts
        (-0.38, _SPACE, _SPACE),
        (-0.54, _PUNCTUATION, _PUNCTUATION),
    )
    for weight, before, after in pairs:
        table[np.ix_(after, before)] += weight
    return table.reshape(-1)


_WEIGHTS: Final = _weights()
