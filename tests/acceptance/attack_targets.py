"""Attacks with the target of a request: long paths of escapes, without a key. Units: seconds, bytes."""

import asyncio
import statistics

from attack_rows import Row, Scale
from gateway_fixture import Site
from raw_http import answer, connect, head, request_bytes

_LONG = "/" + 20_000 * "%41"
_LONGEST = "/" + 2_700 * "%41"  # that is read
_PLAIN = "/" + 8_100 * "A"
_ROUNDS = 50
_TIMES_MAX = 6.0  # of a path without escapes, of which nearly all is the time of a 404
_WAIT_S = 30.0


async def targets(scale: Scale, site: Site) -> list[Row]:
    """A target beyond the limit is not decoded, and one within it takes little time."""
    async with asyncio.timeout(_WAIT_S), answer(site.port, request_bytes(b"", _LONG, "GET")) as got:
        refused = Row("a path of 60 kB of escapes", "414", str(got.status), got.status == 414)
    loop = asyncio.get_running_loop()
    took_s: dict[str, list[float]] = {_PLAIN: [], _LONGEST: []}
    reader, writer = await connect(site.port)
    async with asyncio.timeout(_WAIT_S):
        for _ in range(_ROUNDS):
            for path, times_s in took_s.items():
                began_s = loop.time()
                writer.write(request_bytes(b"", path, "GET"))
                got = await head(reader, writer, began_s)
                await got.body()
                times_s.append(loop.time() - began_s)
    await got.leave()
    times = statistics.median(took_s[_LONGEST]) / statistics.median(took_s[_PLAIN])
    holds = got.status == 404 and (scale.short or times <= _TIMES_MAX)
    wanted = f"404, at most {_TIMES_MAX:g} times as long"
    measured = f"{got.status}, {times:.1f} times"
    return [refused, Row("a path of 8 kB of escapes, and without them", wanted, measured, holds)]
