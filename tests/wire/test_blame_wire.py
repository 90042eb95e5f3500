"""Blame over real sockets: the mistakes of one caller, and dead accounts, in the forms of all providers together."""

from pathlib import Path

from blamed import blamed
from error_forms import DEAD, MISTAKES
from running import run_real
from ttft_gateway.routing.replicas import OPEN_S


def test_mistakes_harm_nobody_and_dead_accounts_leave(tmp_path: Path) -> None:
    """No request of the careful caller is moved, no breaker opens by mistakes, and each dead account costs no error."""
    seen = run_real(blamed(tmp_path, mistakes=8, careful=2, every_s=0.0))
    for name in MISTAKES:
        assert set(seen.careful[name]) <= {"a", "b"}
        assert seen.changes[f"mistake.{name}"] == 0
    assert {name: seen.dead[name] for name in DEAD} == dict.fromkeys(DEAD, 0)
    probes = seen.took_s // OPEN_S  # on a slow machine
    assert max(seen.asked.values()) <= 3 + probes
    assert seen.named == set(DEAD)
    assert all(1 <= seen.changes[f"dead.{name}"] <= 1 + 2 * probes for name in DEAD)  # and at a probe it changes twice
