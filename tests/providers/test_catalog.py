"""The catalogue: every row equals docs/providers.md, and works with its limit headers and first frames."""

import difflib
import json
import re

import pytest
from test_rate_limit_headers import HEADER_SETS

from checkout import DOCS
from openai_calls import call_of
from providers.base import Api, FrameKind
from providers.catalog import CATALOG, Auth, Kind
from providers.protocols import ProtocolOptions, protocols

VECTORS = json.loads((DOCS / "first-token-vectors.json").read_text(encoding="utf-8"))
NO_LIMITS = {
    *("databricks", "deepinfra", "deepseek", "gemini", "nebius", "novita", "perplexity", "sambanova"),
    *("llamacpp", "lmstudio", "nim", "ollama", "sglang", "simulated", "tgi", "vllm"),
}
WITH_LIMITS = {name for name, kind in CATALOG.items() if kind.limits is not None}
HELD_BACK = (FrameKind.PREAMBLE, FrameKind.COMMENT, FrameKind.USAGE)
_AUTH = {Auth.BEARER: "bearer", Auth.API_KEY: "`api-key`", Auth.X_API_KEY: "`x-api-key`"}
_STOPS = {True: "yes", False: "no", None: "not known"}


def row_of(name: str, kind: Kind) -> str:
    """A line of the table."""
    yes = {True: "yes", False: ""}
    apis = ", ".join(f"`{api.value}`" for api in Api if api in kind.apis)
    cells = [
        f"`{name}`",
        _AUTH[kind.auth],
        apis,
        yes[kind.limits is not None],
        _STOPS[kind.cancel_stops_billing],
        yes[kind.counts_max_tokens],
        yes[kind.prefills],
    ]
    return "| " + " | ".join(cells) + " |"


def test_the_table_is_the_catalogue() -> None:
    """docs/providers.md has the line of every kind, and of no other."""
    text = (DOCS / "providers.md").read_text(encoding="utf-8")
    section = text.split("## The catalogue\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    expected = [row_of(name, kind) for name, kind in CATALOG.items()]
    changes = "\n".join(line for line in difflib.ndiff(rows, expected) if line.startswith(("-", "+")))
    assert rows == expected, f"docs/providers.md, The catalogue: apply\n{changes}"


def test_every_kind_has_its_limit_headers_or_none() -> None:
    """Each kind with limit headers is tested with a real set of them; the other kinds have none."""
    tested = {name.split(",")[0] for name in HEADER_SETS}
    untested = WITH_LIMITS - {"compatible"} - tested
    assert not untested, f"add headers of {untested} to HEADER_SETS in tests/providers/test_rate_limit_headers.py"
    changed = NO_LIMITS ^ ({*CATALOG} - WITH_LIMITS)
    assert not changed, f"NO_LIMITS above and `limits` in providers/catalog.py disagree about {changed}"


def test_provider_quotas_describes_the_limit_headers() -> None:
    """docs/provider-quotas.md has each kind with limit headers once, those without as such, and all own engines."""
    page = (DOCS / "provider-quotas.md").read_text(encoding="utf-8")
    found: dict[bool, list[str]] = {True: [], False: []}
    for kinds, headers in re.findall(r"^\| (`.+?) \| (.+?) \|", page.split("\n## What is known\n")[1], re.MULTILINE):
        found[headers != "none"] += re.findall(r"`(\w+)`", kinds)
    providers = {name for name, kind in CATALOG.items() if not kind.own_engine}
    for listed, expected, place in (
        (found[True], WITH_LIMITS, "the table of headers"),
        (found[False], providers - WITH_LIMITS, 'the row with "none"'),
        (_engines_without_quota(page), {*CATALOG} - providers - {"simulated"}, "the list of own engines"),
    ):
        missing, wrong = expected - set(listed), set(listed) - expected
        changes = f"add {missing}, remove {wrong}, name each kind once"
        assert sorted(listed) == sorted(expected), f"docs/provider-quotas.md, {place}: {changes}"


def _engines_without_quota(page: str) -> list[str]:
    return re.findall(r"`(\w+)`", page.partition("Your own engines (")[2].partition(")")[0])


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
