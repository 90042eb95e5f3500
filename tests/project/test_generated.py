"""What is generated from the code is current, and no page repeats a list that is generated."""

import re

import pytest

from checkout import DOCS, ROOT
from contract_file import errors
from generated import BLOCKS, generated, without_blocks
from ttft_gateway.apis.catalog import CATALOG
from ttft_gateway.hedging.outcomes import Denial, Outcome

LISTS = {  # the place of each list, with its names
    "docs/providers.md#the-catalogue": set(CATALOG),
    "docs/hedging.md#denials": {each.value for each in Denial},
    "docs/logs.md#attempts": {each.value for each in Outcome},
    "docs/errors.md": {error.code for error in errors()},
}
OTHER_FACTS = {"docs/providers.md#the-catalogue": {"docs/provider-quotas.md"}}  # pages with a table of other facts
# Evaluations and design records state the names of their time.
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
    if not page.is_relative_to(DOCS / "evaluation") and not page.is_relative_to(DOCS / "design")
]


def test_generated_documents_are_current() -> None:
    """Each generated file, and each block of a page, is what the code gives."""
    outdated = [path.name for path, text in generated() if path.read_text(encoding="utf-8") != text]
    assert outdated == [], "run scripts/generate"


def test_each_block_is_used_once() -> None:
    """Each block is in one page; further pages link to it."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    used = [name for text in texts for name in re.findall(r"^<!-- generated: (\w+) -->$", text, re.MULTILINE)]
    assert sorted(used) == sorted(BLOCKS)


@pytest.mark.parametrize("place", LISTS)
def test_no_page_repeats_a_list(place: str) -> None:
    """No paragraph or table of another page has a third of the names."""
    own = {place.partition("#")[0]} | OTHER_FACTS.get(place, set())
    copies = [
        f"{name}: {paragraph[:60]}"
        for page in PAGES
        if (name := page.relative_to(ROOT).as_posix()) not in own
        for paragraph in without_blocks(page.read_text(encoding="utf-8")).split("\n\n")
        if 3 * len(LISTS[place] & set(re.findall(r"`([\w]+)`", paragraph))) >= len(LISTS[place])
    ]
    assert copies == [], f"link to {place} instead"
