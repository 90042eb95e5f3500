"""Names of quotas: the replicas that share a ledger."""

from ttft_gateway.apis.base import Resource
from ttft_gateway.limits.bucket import Limit
from ttft_gateway.limits.ledger import LedgerRegistry

URL, HOST = "https://api.example.com/v1", "api.example.com"


def test_the_same_address_key_and_model_are_one_quota() -> None:
    """Without a name, replicas are counted together where a provider would count them together."""
    ledgers = LedgerRegistry({})
    assert ledgers.implied(URL, HOST, "k", "m") == ledgers.implied(URL + "/", HOST, "k", "m") == "api.example.com/m"
    others = {
        ledgers.implied(URL, HOST, "other", "m"),
        ledgers.implied(URL, HOST, None, "m"),
        ledgers.implied(URL, HOST, "k", "n"),
        ledgers.implied("https://api.example.com/team/v1", HOST, "k", "m"),
    }
    assert others == {"api.example.com/m#2", "api.example.com/m#3", "api.example.com/n", "api.example.com/m#4"}
    assert set(ledgers) == {"api.example.com/m", *others}


def test_a_named_quota_exists_with_or_without_limits() -> None:
    """The configuration's limits are the ledger's; a name alone is mirrored from what responses state."""
    ledgers = LedgerRegistry({"main": [Limit(Resource.REQUESTS, 10.0)]})
    assert [bucket.limit for bucket in ledgers[ledgers.named("main")].state(0.0)] == [10.0]
    assert ledgers[ledgers.named("bare")].state(0.0) == []
    assert len(ledgers) == 2


def test_no_key_is_part_of_a_name() -> None:
    """Names go to logs and metrics."""
    ledgers = LedgerRegistry({})
    assert "sk-secret" not in ledgers.implied(URL, HOST, "sk-secret", "m")
