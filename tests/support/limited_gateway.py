"""`python -m limited_gateway FILES ARGV`: the gateway with a hard limit of open files.

Each file that it opens after it has begun to accept connections is a line `READ ...` on standard error.
"""

import os
import resource
import sys

from gateway.__main__ import main
from gateway.api.acceptor import Acceptor


def report_reads() -> None:
    """Report files and folders that are opened from the first accept on."""
    accepts: list[Acceptor] = []
    start = Acceptor.start

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if accepts and event in {"open", "os.listdir", "os.scandir"}:
            os.write(2, f"READ {arguments[0]}\n".encode())

    def started(acceptor: Acceptor) -> None:
        accepts.append(acceptor)
        start(acceptor)

    setattr(Acceptor, Acceptor.start.__name__, started)
    sys.addaudithook(audit)


if __name__ == "__main__":
    files = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    report_reads()
    raise SystemExit(main(sys.argv[2:]))
