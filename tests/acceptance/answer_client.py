"""A client that reads answers as fast as it can, as a process of its own: `python -m answer_client PORT`.

A line of its input is a number of connections and a request in JSON; each connection sends the request again and again.
The answer to the line is one line as soon as all of them have their first bytes. An empty line ends them; the answer is
the number of bytes that they have read. Units: bytes.
"""

import json
import os
import socket
import sys
import threading
from typing import Final

_NICE: Final = 10  # the processors of this machine are the gateway's
_READ: Final = 2**20


class _Reader:
    def __init__(self, port: int, payload: bytes) -> None:
        self.first, self.ending, self.read_bytes = threading.Event(), threading.Event(), 0
        self._port, self._payload = port, payload
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.ending.is_set():
            with socket.create_connection(("127.0.0.1", self._port)) as sock:
                sock.settimeout(0.5)
                sock.sendall(self._payload)
                self._read(sock)

    def _read(self, sock: socket.socket) -> None:
        while not self.ending.is_set():
            try:
                piece = sock.recv(_READ)
            except TimeoutError:
                continue
            except ConnectionError:
                return
            self.first.set()
            self.read_bytes += len(piece)
            if not piece:
                return


def _run(port: int) -> None:
    os.nice(_NICE)
    readers: list[_Reader] = []
    for line in sys.stdin:
        if line.strip():
            count, payload = json.loads(line)
            readers = [_Reader(port, payload.encode()) for _ in range(count)]
            for reader in readers:
                reader.first.wait(60)
        else:
            for reader in readers:
                reader.ending.set()
            for reader in readers:
                reader.thread.join(10)
        sys.stdout.write(json.dumps(sum(reader.read_bytes for reader in readers)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _run(int(sys.argv[1]))
