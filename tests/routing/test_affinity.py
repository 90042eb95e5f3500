"""Stored answers: their keys and replicas."""

from ttft_gateway.routing.affinity import ID_CHARS_MAX, Affinity, StoredAnswer

A, B = StoredAnswer("key", "m", "a"), StoredAnswer("key", "m", "b")


def test_the_least_recently_used_id_is_evicted_first() -> None:
    """Recently added or queried ids stay, up to the limit."""
    affinity = Affinity(answers_max=2)
    affinity.learn("r1", A)
    affinity.learn("r2", B)
    assert affinity.find("r1") == A
    affinity.learn("r3", B)
    assert [affinity.find(answer_id) for answer_id in ("r1", "r2", "r3", "r4")] == [A, None, B, None]


def test_the_latest_answer_counts() -> None:
    """A repeated id belongs to the answer that had it last."""
    affinity = Affinity()
    affinity.learn("r1", A)
    affinity.learn("r1", B)
    assert affinity.find("r1") == B


def test_long_ids_are_not_kept() -> None:
    """An upstream cannot fill the memory with ids of megabytes."""
    affinity = Affinity()
    affinity.learn("r" * ID_CHARS_MAX, A)
    affinity.learn("r" * (ID_CHARS_MAX + 1), A)
    assert affinity.find("r" * ID_CHARS_MAX) == A
    assert affinity.find("r" * (ID_CHARS_MAX + 1)) is None
