"""The end of an answer: one rule for every API, streamed or not.

An answer is whole after its API's own finish, and only then:

| API | finish |
|---|---|
| chat completions, completions | a `finish_reason` of each choice |
| Messages | a `stop_reason` |
| Responses | `response.completed` or `response.incomplete`; in a JSON body, such a `status` |

A reader reports the finish as `EventReader.complete`, and nothing else ends an answer: not a closing event, because
some servers write `[DONE]` after a failure, too; not the end of a body, not even of a JSON body, which a proxy may have
assembled from half a stream; not an error, which `response.failed` is. Before its finish an answer is broken by any
end, and by an event that cannot be read and may hold a piece of it. After its finish nothing breaks it, unless content
follows (`EventReader.resumed`): some servers send a `finish_reason` in every chunk. Sans-I/O.
"""

import re
from collections.abc import Sequence
from typing import Final

from ttft_gateway.apis.base import EventReader, Frame, FrameKind
from ttft_gateway.apis.errors import ConnectionCut, EmptyAnswer, ProtocolError, UpstreamError

# A mark of an event of an answer, in any API: the key of its text may be cut or damaged.
_MARK: Final = re.compile(rb'"(?:choices"|delta"|chat\.completion|text_completion|content_block|response\.)').search
# A text under a key of generated output, in any API; also if the event ends before the text.
_PIECE: Final = re.compile(
    rb'"(?:arguments|content|data|delta|input|name|partial_json|reasoning(?:_content|_text)?|refusal|signature|summary'
    rb'|text|thinking|transcript)"\s*:\s*(?:"(?!")|\Z)'
).search


def broken(error: UpstreamError | None = None, *, is_empty: bool = False) -> UpstreamError:
    """Return the error of an answer that ended before its finish.

    Args:
        error: the error that ended its body, None if the body ended properly or with a closing event.
        is_empty: the answer was closed before any content.
    """
    if is_empty:
        return EmptyAnswer("the upstream's stream ended without an answer")
    return error or ConnectionCut("the upstream's stream ended before the answer was complete")


def unreadable(event: bytes) -> Frame:
    """Return the frame of an event that is not a JSON object: it is skipped, unless a piece may be lost with it."""
    if _PIECE(event) is None and _MARK(event) is None:
        return Frame(FrameKind.MALFORMED, b"")
    lost = ProtocolError("the upstream sent a piece of its answer in an event that is not valid JSON")
    return Frame(FrameKind.ERROR, b"", None, lost)


def frames_of_body(reader: EventReader, body: bytes) -> Sequence[Frame]:
    """Return the frames of a JSON body, or one ERROR frame if it is no whole answer."""
    frames = reader.read_body(body)
    failed = next((frame for frame in frames if frame.kind is FrameKind.ERROR), None)
    if failed is not None:
        return (failed,)
    return frames if reader.complete else (unfinished_body(),)


def unfinished_body() -> Frame:
    """Return the frame of a JSON body without its finish."""
    missing = ConnectionCut("the upstream's answer has no finish reason, so it may be incomplete")
    return Frame(FrameKind.ERROR, b"", None, missing)
