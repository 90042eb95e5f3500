"""The memory of bodies: what is kept of keys that come and go."""

import gc

from gateway.admission.body_memory import BodyMemory


def test_keys_that_have_gone_are_forgotten() -> None:
    """Of a list of keys that changes all the time, only keys with bodies and some further ones are held."""
    memory = BodyMemory(10**9, is_shared=True)

    def held() -> int:
        return sum(type(each) is dict and "key-0" in each and len(each) for each in gc.get_referents(memory))

    stays = memory.hold("key-0", 1)
    assert stays is not None
    for number in range(1, 5_000):
        body = memory.hold(f"key-{number}", 1)
        assert body is not None
        memory.close(body, 0.1)
    assert 1 < held() <= 1_000
    another = memory.hold("key-0", 1)
    assert another is not None
    assert another.usage is stays.usage
    assert stays.usage.bodies == 2
    opened = [memory.open(f"open-{number}") for number in range(3_000)]
    assert held() > len(opened)
    for each in opened:
        memory.close(each)
    for number in range(2_000):
        memory.close(memory.open(f"new-{number}"))
    assert held() <= 1_000
