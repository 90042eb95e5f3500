"""Prefix memory: two prompts share what their bytes share, per replica, bounded, the oldest forgotten first."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttft_gateway.estimation.prefixes import PrefixMemory, prefix_hashes, uncached_tokens

seeds = st.integers(0, 2**32)


def text(seed: int, length: int) -> bytes:
    """Random bytes that no other seed produces."""
    return (b"%d;" % seed * (length // 2 + 1))[:length]


def cached(memory: PrefixMemory, prompt: bytes, now_s: float = 0.0) -> int:
    """Bytes of a prompt believed cached."""
    return memory.cached_bytes(prefix_hashes(prompt), now_s)


@given(st.integers(0, 60_000), st.integers(0, 5_000), st.integers(0, 5_000))
def test_what_two_prompts_share_is_cached(shared: int, first: int, second: int) -> None:
    """At most what is shared is believed cached, and no less than that less one block (512 bytes or a sixteenth)."""
    memory = PrefixMemory()
    prefix = text(1, shared)
    memory.remember(prefix_hashes(prefix + b"x" * first), 0.0)
    found = cached(memory, prefix + b"y" * second)
    assert found <= shared
    assert found > shared - max(512, shared / 16) - 1


def test_a_conversation_that_goes_on_is_cached_up_to_its_new_turn() -> None:
    """The messages of the next turn begin with the bytes of the last one."""
    turns = [{"role": "user", "content": text(n, 3_000).decode()} for n in range(4)]
    before, after = (json.dumps(turns[:n]).encode() for n in (3, 4))
    memory = PrefixMemory()
    memory.remember(prefix_hashes(before), 0.0)
    assert len(before) * 0.9 <= cached(memory, after) <= len(before)


def test_a_change_at_the_start_shares_nothing() -> None:
    """A hash identifies all bytes before it, not only its own block."""
    memory = PrefixMemory()
    memory.remember(prefix_hashes(b"a" + text(1, 20_000)), 0.0)
    assert cached(memory, b"b" + text(1, 20_000)) == 0


@pytest.mark.parametrize("prompt", [b"", b"short", b"x" * 511])
def test_short_prompts_have_no_hashes(prompt: bytes) -> None:
    """Below one block nothing is worth remembering."""
    assert prefix_hashes(prompt) == ()
    memory = PrefixMemory()
    memory.remember((), 0.0)
    assert cached(memory, prompt) == 0


def test_long_prompts_have_few_hashes() -> None:
    """A prompt of many megabytes is hashed in its first half only so far, in less than a hundred steps."""
    assert len(prefix_hashes(b"x" * 3_000_000)) < 100
    assert prefix_hashes(b"x" * 3_000_000) == prefix_hashes(b"x" * 600_000)


def test_memory_is_bounded_and_forgets_the_least_recently_used() -> None:
    """Of two prompts that fill the memory, the one used again survives a third."""
    memory = PrefixMemory(hashes_max=60)
    prompts = [text(seed, 15_000) for seed in range(3)]  # 24 hashes each
    for n in (0, 1, 0, 2):
        memory.remember(prefix_hashes(prompts[n]), float(n))
    assert len(memory._used_s) == 60
    assert cached(memory, prompts[0]) == cached(memory, prompts[2]) > 14_000
    assert cached(memory, prompts[1]) < 10_000


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9_000)), max_size=40))
def test_the_beginning_is_forgotten_last(uses: list[tuple[int, int]]) -> None:
    """However prompts evict each other, what is known of one is always its beginning."""
    memory = PrefixMemory(hashes_max=25)
    for seed, length in uses:
        memory.remember(prefix_hashes(text(seed, length)), 0.0)
    assert len(memory._used_s) <= 25
    for seed in range(7):
        known = [link in memory._used_s for link in prefix_hashes(text(seed, 9_000))]
        assert known == sorted(known, reverse=True)


def test_a_prefix_unused_for_long_is_not_believed() -> None:
    """After keep_s nothing is cached any more; using it again counts from then."""
    memory = PrefixMemory(keep_s=300.0)
    prompt = text(1, 5_000)
    memory.remember(prefix_hashes(prompt), 0.0)
    assert cached(memory, prompt, 300.0) > 4_000
    assert cached(memory, prompt, 300.1) == 0
    memory.remember(prefix_hashes(prompt), 301.0)
    assert cached(memory, prompt, 600.0) > 4_000


@pytest.mark.parametrize(
    ("tokens", "prompt_bytes", "cached_bytes", "expected"),
    [(100.0, 400, 0, 100.0), (100.0, 400, 300, 25.0), (100.0, 400, 400, 0.0), (100.0, 400, 512, 0.0), (7.0, 0, 0, 7.0)],
)
def test_uncached_tokens(tokens: float, prompt_bytes: int, cached_bytes: int, expected: float) -> None:
    """The share of the bytes that is not cached, of the tokens; never below 0."""
    assert uncached_tokens(tokens, prompt_bytes, cached_bytes) == pytest.approx(expected)
