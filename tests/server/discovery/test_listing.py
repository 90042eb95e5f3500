"""What an answer of a source changes: a table of answers, by the names of replicas."""

import pytest

from gateway.config.discovered import address_rows
from gateway.config.settings import DiscoverSettings, ReplicaSettings
from gateway.server.discovery.driver import Listing, after

SOURCE = DiscoverSettings.model_validate({"dns": "vllm.svc", "port": 8000, "kind": "vllm"})


def rows(names: str) -> tuple[ReplicaSettings, ...]:
    """A replica for each letter."""
    return tuple(ReplicaSettings(name=name, kind="vllm", base_url=f"http://{name}:1/v1") for name in names)


@pytest.mark.parametrize(
    ("answers", "in_use"),
    [
        (["ab"], "ab"),
        (["ab", "abc"], "abc"),  # one more
        (["abcd", "abc"], "abc"),  # one less
        (["abcd", "ab"], "ab"),  # exactly half
        (["ab", ""], "ab"),  # empty
        (["", ""], ""),  # empty from the beginning
        (["ab", "", "ab", "b"], "b"),
        (["abcd", "a"], "abcd"),  # over half: kept ...
        (["abcd", "a", "a"], "abcd"),
        (["abcd", "a", "a", "a"], "a"),  # ... until three answers in a row lack them
        (["abcd", "a", "a", "", "a"], "a"),  # an empty answer is none
        (["abcd", "a", "a", "abcd", "a", "a"], "abcd"),  # not in a row
        (["abcd", "a", "b", "c"], "abc"),  # only what all three lack
        (["abcd", "xyzw"], "abcdwxyz"),  # new ones are used immediately
        (["abcd", "xyzw", "xyzw", "xyzw"], "wxyz"),
        (["a", "b", "b"], "ab"),
        (["a", "b", "b", "b"], "b"),
    ],
)
def test_what_stays_in_use(answers: list[str], in_use: str) -> None:
    """An empty answer changes nothing, and one that lacks over half must come three times."""
    listing = Listing()
    fault: str | None = None
    for answer in answers:
        listing, fault = after(listing, rows(answer))
    assert "".join(sorted(row.name for row in listing.rows)) == in_use
    is_believed = answers[-1] == "c" or set(answers[-1]) == set(in_use) != set()
    assert (fault is None) is is_believed


def test_a_row_with_other_settings_replaces_the_old_one() -> None:
    """A name that stays has the settings of the last answer."""
    before, _ = after(Listing(), rows("ab"))
    changed = (before.rows[0].model_copy(update={"weight": 3}), before.rows[1])
    assert after(before, changed)[0].rows == changed


@pytest.mark.parametrize(
    ("addresses", "names"),
    [
        (["10.0.0.9", "10.0.0.10"], ["10.0.0.9:8000", "10.0.0.10:8000"]),
        (["fd00::2", "fd00::1"], ["[fd00::1]:8000", "[fd00::2]:8000"]),
        (["fd00::1", "10.0.0.1"], ["10.0.0.1:8000"]),  # two addresses of one pod
        ([], []),
    ],
)
def test_addresses_become_replicas(addresses: list[str], names: list[str]) -> None:
    """A replica is named after its address; those that stay are the same objects."""
    made = address_rows(SOURCE, addresses, ())
    assert [row.name for row in made] == names
    assert [row.base_url for row in made] == [f"http://{name}/v1" for name in names]
    again = address_rows(SOURCE, addresses, made)
    assert all(row is same for row, same in zip(made, again, strict=True))
