"""`python -m streaming_bench.compare.gateway_process SIGNAL FILE`: a gateway that takes headers for the first token.

The same gateway as `ttft-gateway serve --config FILE`, but its hedging delay is learned from the time to response
headers. With SIGNAL `headers` the headers of an attempt also end its timer, as in a proxy that times responses; with
`ttfb` only content does. No configuration can ask for either. It prints the two addresses like `serve`.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from gateway.cli.process import run_until_end
from gateway.config.loader import load
from gateway.server.model_parts import Tune
from gateway.server.process import Addresses, run
from ttft_gateway.hedging.parameters import HedgeParameters
from ttft_gateway.hedging.plan import FirstEvent

SIGNALS: Final = ("ttfb", "headers")


def tuned(signal: str) -> Tune:
    """Return the change of a pool's hedging for one of `SIGNALS`."""
    answered_by = FirstEvent.HEADERS if signal == "headers" else FirstEvent.CONTENT

    def tune(hedge: HedgeParameters) -> HedgeParameters:
        return replace(hedge, sampled_event=FirstEvent.HEADERS, answered_by=answered_by)

    return tune


def main(argv: Sequence[str]) -> int:
    """Run the gateway until a signal ends it; return its exit code."""
    signal, file = argv
    settings = load(Path(file), os.environ)

    def on_ready(addresses: Addresses) -> None:
        print(
            f"ready at http://{addresses.public}/v1\n  admin at http://{addresses.admin} ", file=sys.stderr, flush=True
        )

    return run_until_end(run(settings, on_ready, tune=tuned(signal)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
