"""The files of the live page and of the API reference: complete, and without parts from other addresses."""

import re
from importlib.resources import files

import pytest

from gateway.pages.files import HEADERS, LIVE, REFERENCE, page

STATIC = files("gateway.pages").joinpath("static")
PATHS = [(paths, path) for paths in (LIVE, REFERENCE) for path in paths]


@pytest.mark.parametrize(("paths", "path"), PATHS)
def test_every_file_has_its_type(paths: dict[str, str], path: str) -> None:
    """Each file is there, and has the type of its name."""
    kind, content = page(paths[path])
    expected = {"html": "text/html", "css": "text/css"}.get(paths[path].rsplit(".", 1)[1], "text/javascript")
    assert kind == f"{expected}; charset=utf-8"
    assert content


def test_the_policy_has_no_exceptions() -> None:
    """Each file is sent with a policy that allows parts of the same address only."""
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("paths", [LIVE, REFERENCE])
def test_every_part_that_a_file_names_is_served(paths: dict[str, str]) -> None:
    """The parts that the files load are those that have a path, no more and no fewer."""
    named = set()
    for name in paths.values():
        text = STATIC.joinpath(name).read_text(encoding="utf-8")
        named |= set(re.findall(r'(?:from "\./|href="|src=")([\w/]+\.(?:js|css))"', text))
    assert {name.rpartition("/")[2] for name in named} == set(paths.values()) - {"live.html", "reference.html"}


def test_no_file_names_another_host_or_writes_markup() -> None:
    """The pages work offline, and text of the gateway cannot become markup."""
    for file in STATIC.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|\beval\(|innerHTML|insertAdjacentHTML|document\.write", text), file.name
