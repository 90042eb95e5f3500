"""Settings, targets and counts of the client library."""

import threading
from typing import Any

import pytest

import ttft_gateway
from ttft_gateway import HedgeConfig, HedgingTransport, Stats, Target


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"policy": "static"}, "policy is 'static'; use 'adaptive', 'percentile' or 'off'"),
        ({"percentile": 90}, "percentile is 90; use a value from 0.01 to 0.999"),
        ({"budget_percent": -1}, "budget_percent is -1; use a value from 0 to 100"),
        ({"min_delay": "1ms"}, "min_delay is '1ms'; use a number"),
        ({"min_delay": float("nan")}, "min_delay is nan; use a number"),
        ({"max_hedges": 4}, "max_hedges is 4; use a value from 0 to 3"),
        ({"max_hedges": 1.5}, "max_hedges is 1.5; use a whole number"),
        ({"max_hedges": True}, "max_hedges is True; use a whole number"),
        ({"window": 0.1}, "window is 0.1; use a value from 1 to 86400"),
        ({"warmup_requests": 0}, "warmup_requests is 0; use a value from 1 to 100000"),
        ({"warmup_delay": -1.0}, "warmup_delay is -1; use a value from 0 to 3600"),
    ],
)
def test_a_wrong_setting_is_named(fields: dict[str, Any], message: str) -> None:
    """A value out of its range raises an error with the setting, its value and the range."""
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        HedgeConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"base_url": "api.example/v1"}, "base_url is 'api.example/v1'; use an address"),
        ({"base_url": "https://u:p@host/v1"}, "base_url has a query, fragment or password; remove it"),
        ({"base_url": "https://host/v1", "api_key": ""}, "api_key is empty or has a space or line break"),
        ({"base_url": "https://host/v1", "api_key": "k\n"}, "api_key is empty or has a space or line break"),
        ({"base_url": "https://host/v1", "kind": "no"}, "kind is 'no'; use one of anthropic, "),
    ],
)
def test_a_wrong_target_is_named(fields: dict[str, Any], message: str) -> None:
    """An address that cannot be used raises an error, without a password in it."""
    with pytest.raises(ValueError, match=message):
        Target(**fields)


def test_two_targets_need_two_names() -> None:
    """Statistics are by name, so two targets with the same host need names."""
    same = Target("https://host/a"), Target("https://host/b")
    with pytest.raises(ValueError, match="two replicas are named 'host'; give each a name"):
        HedgingTransport(replicas=same)


def test_a_target_shows_no_key() -> None:
    """Keys and headers are not in its representation."""
    shown = repr(Target("https://host", api_key="sk-1", headers={"x": "sk-2"}))
    assert "sk-" not in shown


def test_the_first_event_is_checked() -> None:
    """A wrong name of an event raises an error."""
    wrong: Any = "byte"
    with pytest.raises(ValueError, match="first is 'byte'; use 'content', 'headers', 'body' or a function"):
        HedgingTransport(first=wrong)


def test_counts_of_several_threads_are_exact() -> None:
    """Threads that count at the same time lose nothing."""
    stats = Stats()

    def count() -> None:
        for _ in range(500):
            stats.sent("a", 0)
            stats.sent("a", 1)
            stats.won("a", backup=True, saved_s=0.5)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = stats.snapshot()
    assert (counts.requests, counts.hedges, counts.hedge_wins, counts.saved_s) == (2_000, 2_000, 2_000, 1_000.0)
    assert stats.hedge_rate() == 1.0
    assert counts.targets["a"].requests == 4_000
    assert repr(stats) == "<Stats: 2000 requests, 2000 backups, 2000 won>"


def test_names_of_targets_are_bounded() -> None:
    """A client of many hosts counts the later ones together."""
    stats = Stats()
    for number in range(1_000):
        stats.sent(f"host-{number}", 0)
    counts = stats.snapshot()
    assert len(counts.targets) == 257
    assert counts.targets["other"].requests == 744


def test_every_public_name_can_be_imported() -> None:
    """Each name is imported when it is used; others raise as in any module."""
    assert [name for name in ttft_gateway.__all__ if getattr(ttft_gateway, name).__name__ != name] == []
    assert dir(ttft_gateway) == sorted(ttft_gateway.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = ttft_gateway.Nothing


def test_a_configuration_is_a_key_of_a_mapping() -> None:
    """A program may keep one client for each configuration, with rules or without."""
    kept = {HedgeConfig(): 1, HedgeConfig(safe={"POST /search": "headers"}): 2}
    assert kept[HedgeConfig(safe={"POST /search": "headers"})] == 2
    assert kept[HedgeConfig()] == 1
