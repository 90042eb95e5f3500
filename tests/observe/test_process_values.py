"""Values of the process."""

import sys
import threading

import pytest

from gateway.observe import process


@pytest.mark.skipif(sys.platform != "linux", reason="the statistics are of Linux")
def test_the_memory_of_one_of_several_processes_is_read_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call returns what was read after the call before, because Linux takes milliseconds."""
    readers: list[threading.Thread] = []

    def read(_fd: int) -> float:
        readers.append(threading.current_thread())
        return float(len(readers))

    monkeypatch.setattr(process, "_pss_bytes", read)
    memory = process.shared_memory_reader()
    found = [memory()]
    for thread in threading.enumerate():
        if thread.name == "memory":
            thread.join()
    found.append(memory())
    assert (found, readers[1] is readers[0]) == ([1.0, 2.0], False)
