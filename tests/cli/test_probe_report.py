"""The report of the probe: for people and for programs."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.cli.probe.cancel import CancelResult, CancelTest
from gateway.cli.probe.quirks import Quirk
from gateway.cli.probe.report import ProbeReport, Times, as_json, cleaned, details, table
from gateway.cli.probe.signs import SignTest
from ttft_gateway.apis.base import Api


def report(**changes: Any) -> ProbeReport:
    """A replica without a fault."""
    fine = ProbeReport(
        model="m",
        replica="a",
        kind="vllm",
        error=None,
        streams=3,
        times=Times(0.001, 0.01, 0.011, 0.2, 0.015),
        limits={"x-ratelimit-limit": "5"},
        cancel=CancelTest(CancelResult.OBEYED, "gone"),
        quirks=[Quirk("crlf", "lines")],
    )
    return replace(fine, **changes)


@pytest.mark.parametrize(
    ("after_s", "error", "words"),
    [
        (0.32, None, "320 ms after the headers; it can be timed as the first token"),
        (0.001, None, "together with the headers, so it does not show when work begins; it is not timed"),
        (None, "status 404", "not measured: status 404"),
        (None, None, "none"),
    ],
)
def test_signs_of_work_are_told_and_failures_are_not_the_probes(
    after_s: float | None, error: str | None, words: str
) -> None:
    """One line for each API; a replica without the API has not failed."""
    found = report(signs=[SignTest(Api.RESPONSES, after_s, error)])
    assert f"  sign of work (responses): {words}" in list(details(found))
    assert as_json(found)["ok"] is True


def test_what_was_found_is_shown() -> None:
    """The table has a line of at most 80 columns for each replica, failed ones included; details follow it."""
    failed = report(replica="b", error="status 401", times=Times(), cancel=None, limits={}, quirks=[])
    lines = table([report(), failed])
    assert [line.split() for line in lines] == [
        ["ms", "connect", "headers", "byte", "content", "gap", "trap", "cancel"],
        ["m/a", "1.0", "10.0", "11.0", "200.0", "15.0", "yes", "obeyed"],
        ["m/b", "-", "-", "-", "-", "-", "-", "FAILED"],
    ]
    assert max(map(len, lines)) <= 80
    assert list(details(report()))[1:] == ["  limits: x-ratelimit-limit: 5", "  cancel: obeyed: gone", "  crlf: lines"]
    assert list(details(failed)) == ["m/b (vllm)", "  failed: status 401"]


def test_programs_get_the_same() -> None:
    """The JSON form has everything that the table has."""
    shown = json.loads(json.dumps(as_json(report())))
    assert shown["ok"] is True
    assert (shown["connect_ms"], shown["content_ms"], shown["ttfb_trap"]) == (1.0, 200.0, True)
    assert shown["cancel"] == {"outcome": "obeyed", "text": "gone"}
    assert shown["quirks"] == [{"name": "crlf", "text": "lines"}]
    assert as_json(report(error="no"))["ok"] is False


def test_texts_of_replicas_are_cleaned() -> None:
    """Texts of a replica cannot control the terminal, show a key, or fill the screen."""
    assert cleaned("key sk-1\x1b[31m\r\n", ["sk-1"]) == "key **** [31m  "
    assert len(cleaned("x" * 10_000, [])) < 400
