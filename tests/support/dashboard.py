"""The Grafana dashboard docker/monitoring/dashboard.json, made from the panels of dashboard_panels.py.

`python tests/support/dashboard.py` writes the file. The same queries are run against a Prometheus server by the tests,
and drawn by tests/acceptance/panels.py.
"""

import json
import sys
from collections.abc import Iterator
from typing import Final

from checkout import ROOT
from dashboard_panels import ROWS, panels
from panel import JOB, Panel

FILE: Final = ROOT / "docker/monitoring/dashboard.json"
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH: Final = 8  # of 24
_HEIGHT: Final = 8


def document() -> dict[str, object]:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": "ttft-gateway",
        "title": "ttft-gateway",
        "description": "Do clients wait, why, and what does hedging do about it? Runbook: docs/runbook.md.",
        "tags": ["llm", "ttft-gateway"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "annotations": {"list": [_alerts()]},
        "templating": {"list": list(_variables())},
        "panels": list(_placed()),
    }


def _alerts() -> dict[str, object]:
    return {
        "name": "Alerts",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": f'ALERTS{{alertname=~"Ttft.*",alertstate="firing",{JOB}}}',
        "titleFormat": "{{alertname}}",
    }


def _variables() -> Iterator[dict[str, object]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    for name, label, query in (
        ("job", "Job", "label_values(ttft_gateway_build_info, job)"),
        ("model", "Model", f"label_values(ttft_gateway_hedging_on{{{JOB}}}, gen_ai_request_model)"),
    ):
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _placed() -> Iterator[dict[str, object]]:
    """Yield rows and panels, three in a row."""
    number, top = 0, 0
    for title, row in ROWS.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
        }
        top += 1
        for place, panel in enumerate(row):
            number += 1
            x, y = place % 3 * _WIDTH, top + place // 3 * _HEIGHT
            yield _drawn(panel, number, {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT})
        top += (len(row) + 2) // 3 * _HEIGHT


def _drawn(panel: Panel, number: int, place: dict[str, int]) -> dict[str, object]:
    needs = "" if panel.needs is None else f" Empty without {panel.needs}."
    defaults: dict[str, object] = {"unit": panel.unit, "custom": {"fillOpacity": 5, "showPoints": "never"}}
    if panel.least is not None:
        defaults["min"] = panel.least
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.why + needs,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": query.expr, "legendFormat": query.legend}
            for place, query in enumerate(panel.queries)
        ],
    }


def text() -> str:
    """Return the content of the file."""
    return json.dumps(document(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"{FILE.relative_to(ROOT)}: {len(panels())} panels\n")
