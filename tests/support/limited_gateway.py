"""`python -m limited_gateway FILES ARGV`: the gateway with a hard limit of open files.

Each file that it opens after it has loaded the framework of its admin routes, because many files are open, is
a line `READ ...` on standard error, and so is the loading: `LOADED`.
"""

import os
import resource
import sys

from gateway.__main__ import main
from gateway.server.admin_address import AdminAddress


def report_reads() -> None:
    """Report files and folders that are opened after the framework was loaded."""
    loaded: list[AdminAddress] = []
    load = AdminAddress.load

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if loaded and event in {"open", "os.listdir", "os.scandir"}:
            os.write(2, f"READ {arguments[0]}\n".encode())

    async def reported(address: AdminAddress) -> None:
        await load(address)
        loaded.append(address)
        os.write(2, b"LOADED\n")

    setattr(AdminAddress, AdminAddress.load.__name__, reported)
    sys.addaudithook(audit)


if __name__ == "__main__":
    files = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    report_reads()
    raise SystemExit(main(sys.argv[2:]))
