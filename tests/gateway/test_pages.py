"""The files of the live page and of the API reference: complete, and without parts from other addresses."""

import re
from importlib.resources import files

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from gateway.pages.files import LIVE, REFERENCE, add_pages

STATIC = files("gateway.pages").joinpath("static")
PATHS = [(paths, path) for paths in (LIVE, REFERENCE) for path in paths]


def client(paths: dict[str, str]) -> TestClient:
    """Return a client of an application with these pages only."""
    app = FastAPI(docs_url=None)
    add_pages(app, paths)
    return TestClient(app)


@pytest.mark.parametrize(("paths", "path"), PATHS)
def test_every_file_is_served_with_its_policy(paths: dict[str, str], path: str) -> None:
    """Each file has its type, and a policy without exceptions."""
    answer = client(paths).get(path)
    assert answer.status_code == 200
    kind = {"html": "text/html", "css": "text/css"}.get(paths[path].rsplit(".", 1)[1], "text/javascript")
    assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert client(paths).head(path).content == b""


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
