"""Replicas of stored answers."""

from gateway.routing.affinity import Affinity


def test_the_least_recently_used_id_is_forgotten_first() -> None:
    """Recently added or queried ids stay, up to the limit."""
    affinity = Affinity(kept_max=2)
    affinity.learn("r1", "a")
    affinity.learn("r2", "b")
    assert affinity.replica_of("r1") == "a"
    affinity.learn("r3", "c")
    assert [affinity.replica_of(answer_id) for answer_id in ("r1", "r2", "r3", "r4")] == ["a", None, "c", None]


def test_the_latest_replica_counts() -> None:
    """A repeated id belongs to the replica that produced it last."""
    affinity = Affinity()
    affinity.learn("r1", "a")
    affinity.learn("r1", "b")
    assert affinity.replica_of("r1") == "b"
