"""The catalogue: every row equals docs/providers.md, and works with its limit headers and first frames."""

import json
import re

import pytest
from test_rate_limit_headers import HEADER_SETS

from checkout import DOCS
from openai_calls import call_of
from providers.protocols import ProtocolOptions, protocols
from ttft_gateway.apis.base import Api, FrameKind
from ttft_gateway.apis.catalog import CATALOG

VECTORS = json.loads((DOCS / "first-token-vectors.json").read_text(encoding="utf-8"))
WITH_LIMITS = {name for name, kind in CATALOG.items() if kind.limits is not None}
HELD_BACK = (FrameKind.PREAMBLE, FrameKind.COMMENT, FrameKind.USAGE)


def test_every_kind_has_its_limit_headers_or_none() -> None:
    """Each kind with limit headers is tested with a real set of them."""
    tested = {name.split(",")[0] for name in HEADER_SETS}
    untested = WITH_LIMITS - {"compatible"} - tested
    assert not untested, f"add headers of {untested} to HEADER_SETS in tests/apis/test_rate_limit_headers.py"


def test_provider_quotas_describes_the_limit_headers() -> None:
    """docs/provider-quotas.md has each kind with limit headers once, and no other kind."""
    page = (DOCS / "provider-quotas.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|", page.split("\n## What is known\n")[1], re.MULTILINE)
    listed = [name for kinds, _ in rows for name in re.findall(r"`(\w+)`", kinds)]
    missing, wrong = WITH_LIMITS - set(listed), set(listed) - WITH_LIMITS
    changes = f"add {missing}, remove {wrong}, name each kind once"
    assert sorted(listed) == sorted(WITH_LIMITS), f"docs/provider-quotas.md, the table of headers: {changes}"


@pytest.mark.parametrize("name", sorted({*CATALOG} - {"compatible", "simulated"}))
def test_first_frames_of_every_kind(name: str) -> None:
    """As this kind is configured, what its server sends before any content is held back, and its first text is not."""
    kind = CATALOG[name]
    api = Api.CHAT if Api.CHAT in kind.apis else Api.MESSAGES
    protocol = protocols(kind, kind.apis, ProtocolOptions())[api]
    rows = [row for row in VECTORS if row["server"] == name and row.get("api", "chat") == api.value.split("/")[0]]
    before = [row for row in rows if row["kind"] in ("preamble", "comment")]
    first = [row for row in rows if row["kind"] == "content"]
    assert first, f'no "content" row for "{name}" ({api.value}) in docs/first-token-vectors.json'
    reader = protocol.reader(call_of({"model": "m", "stream": True}, api))
    for row in before:
        assert reader.read(row["event"].encode()).kind in HELD_BACK, row["what"]
    assert all(reader.read(row["event"].encode()).kind is FrameKind.CONTENT for row in first)
