"""Draws the panels of the dashboard from a Prometheus server, one picture for each row; needs no Grafana.

    PYTHONPATH=.:tests/support:tests/acceptance .venv/bin/python tests/acceptance/panels.py FOLDER [SECONDS]

The server scrapes a gateway in trouble (monitored.py) for a time. Units: seconds.
"""

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from dashboard_panels import ROWS
from monitored import RULES, filled, monitored, trouble
from panel import Panel
from prometheus_server import PrometheusServer
from running import run_real

_POINTS: Final = 120
_COLUMNS: Final = 3
_LEGENDS_MAX: Final = 8


def draw(server: PrometheusServer, folder: Path, start_s: float, end_s: float, window: str) -> list[Path]:
    """Draw every row, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number, (title, row) in enumerate(ROWS.items(), 1):
        lines = (len(row) + _COLUMNS - 1) // _COLUMNS
        figure, axes = plt.subplots(lines, _COLUMNS, figsize=(18, 4 * lines), squeeze=False, layout="constrained")
        figure.suptitle(title, fontsize=16)
        places = [place for line in axes for place in line]
        for place in places[len(row) :]:
            place.set_axis_off()
        for panel, place in zip(row, places, strict=False):
            _draw_panel(place, panel, server, start_s, end_s, window)
        files.append(folder / f"{number}-{re.sub(r'[^a-z]+', '-', title.lower()).strip('-')}.png")
        figure.savefig(files[-1], dpi=70)
        plt.close(figure)
    return files


def _draw_panel(place: Axes, panel: Panel, server: PrometheusServer, start_s: float, end_s: float, window: str) -> None:
    place.set_title(f"{panel.title} [{panel.unit}]", fontsize=10)
    count = 0
    for query in panel.queries:
        for line in server.ranged(filled(query.expr, window), start_s, end_s, (end_s - start_s) / _POINTS):
            times, values = zip(*((at_s - start_s, value) for at_s, value in line.points), strict=True)
            label = legend(query.legend, line.labels) if count < _LEGENDS_MAX else None
            place.plot(times, values, label=label, linewidth=1)
            count += 1
    if count:
        place.legend(fontsize=7, loc="upper left")
    else:
        place.text(0.5, 0.5, f"no series (needs {panel.needs})", ha="center", transform=place.transAxes)
    if panel.least is not None:
        place.set_ylim(bottom=panel.least)
    place.grid(alpha=0.3)


def legend(template: str, labels: Mapping[str, str]) -> str:
    """Return the legend of a line, as Grafana writes it."""
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), template)


def main(arguments: Sequence[str]) -> int:
    """Run the gateway and the server, draw, and return the exit code."""
    folder, for_s = Path(arguments[0]), float(arguments[1]) if len(arguments) > 1 else 90.0
    with (
        tempfile.TemporaryDirectory() as temporary,
        monitored(Path(temporary), RULES, 1.0) as (served, server, limited),
    ):
        start_s = datetime.now(UTC).timestamp()
        run_real(trouble(served, limited, for_s))
        for file in draw(server, folder, start_s, datetime.now(UTC).timestamp(), "15s"):
            sys.stdout.write(f"{file}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
