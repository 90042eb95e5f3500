"""The commands `ttft-gateway` and `ttft-bench`, run by the extra `serve`; `python -m ttft_gateway` is the first.

The base distribution owns the names, so that `pipx install` and `uvx` find them. The server's distribution registers
the functions as entry points; the library itself never imports the server. No units.
"""

import sys

_NOT_INSTALLED = 2  # the exit code for a command line that cannot be run
_INTERRUPTED = 130  # the exit code after Ctrl-C


def gateway() -> int:
    """Run the command line `ttft-gateway`; return its exit code."""
    return _run("ttft-gateway")


def bench() -> int:
    """Run the command line `ttft-bench`; return its exit code."""
    return _run("ttft-bench")


def _run(name: str) -> int:
    try:
        from importlib.metadata import PackageNotFoundError, distribution

        try:
            commands = distribution("ttft-gateway-server").entry_points
        except PackageNotFoundError:
            print(
                f"{name}: only the client library is installed; install the gateway with the extra `serve`: "
                'pip install "ttft-gateway[serve]"',
                file=sys.stderr,
            )
            return _NOT_INSTALLED
        return int(commands[name].load()())
    except KeyboardInterrupt:  # while modules are imported
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(gateway())
