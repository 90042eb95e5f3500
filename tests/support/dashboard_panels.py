"""The panels of the Grafana dashboard, by row; dashboard.py makes the document from them."""

from collections.abc import Sequence
from typing import Final

import panels_of_limits
import panels_of_requests
from panel import Panel

ROWS: Final[dict[str, Sequence[Panel]]] = {**panels_of_requests.ROWS, **panels_of_limits.ROWS}


def panels() -> list[Panel]:
    """Return all panels."""
    return [panel for row in ROWS.values() for panel in row]
