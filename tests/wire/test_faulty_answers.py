"""A few hundred answers under every kind of fault, in every API, from a gateway process; fault_run.py asks for more."""

from collections import Counter

from fault_judge import WRONG
from fault_requests import FAULTS
from fault_scenarios import faulty
from running import run_real


def test_no_answer_is_wrong() -> None:
    """No answer mixes, loses, doubles or silently cuts a text, and the gateway reports no bug."""
    results = run_real(faulty(list(FAULTS), 22))
    seen = sum(results.by(0).values(), Counter[str]())
    assert {result: seen[result] for result in WRONG} == dict.fromkeys(WRONG, 0), results.examples
    assert results.troubles == []
    assert seen.total() == 22 * len(FAULTS)
    assert min(seen["whole"], seen["error"], seen["refused"]) > 0
