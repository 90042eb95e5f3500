"""The table of docs/evaluation/faults.md, row by row."""

from checkout import DOCS
from fault_table import FAULTS, HEALTHY_S, play, table


def test_the_table_of_the_docs_is_what_happens() -> None:
    """Every row of the page is the result of a run of the gateway's own race, to the hundredth of a second."""
    page = DOCS / "evaluation" / "faults.md"
    assert table() in page.read_text(encoding="utf-8")


def test_no_fault_costs_more_than_its_timers() -> None:
    """Wherever a replica could answer, the answer is there within twice the healthy time and the stated timers."""
    waits_s = {"silence": 10.0, "silent": 20.0, "429 once": 3.0}
    for fault in FAULTS:
        seen = play(fault)
        timers_s = sum(wait_s for word, wait_s in waits_s.items() if word in fault.name)
        assert seen.after_s <= 2 * HEALTHY_S + timers_s
        assert seen.calls <= 4
