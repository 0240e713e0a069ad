"""Regenerate the Grafana dashboards in ``helm/bkheal/files/dashboards`` from ``.ci/dashboards/*.py``.

``python .ci/generate_dashboards.py`` rewrites them; ``--out DIRECTORY`` writes elsewhere, which is how the freshness
test compares.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from dashboards.boards import BOARDS
from dashboards.model import Board, Panel, Row

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 24
SCHEMA_VERSION = 39
SELECTED = 'cluster=~"$cluster",namespace=~"$namespace"'
AUDITOR = "http://localhost:8080"
"""With a port-forward to the leader's Service."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass
class Pen:
    """Places panels from left to right, and below when a line is full."""

    x: int = 0
    y: int = 0
    line_height: int = 0
    next_id: int = 1

    def place(self, width: int, height: int) -> dict[str, int]:
        """Where a panel of this size goes."""
        if self.x + width > COLUMNS:
            self.new_line()
        at = {"x": self.x, "y": self.y, "w": width, "h": height}
        self.x += width
        self.line_height = max(self.line_height, height)
        return at

    def new_line(self) -> None:
        """Go on below."""
        self.x, self.y, self.line_height = 0, self.y + self.line_height, 0

    def take_id(self) -> int:
        """A number for a panel."""
        self.next_id += 1
        return self.next_id - 1


def document(board: Board) -> dict[str, Any]:
    """A dashboard in Grafana's form."""
    return {
        "uid": f"bkheal-{board.name}",
        "title": f"bkheal / {board.title}",
        "description": board.description,
        "tags": ["bkheal", "bookkeeper"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "links": [_links(), _report()],
        "annotations": {"list": [_alerts()]},
        "templating": {
            "list": [
                _source(),
                _variable("cluster"),
                _variable("namespace"),
                *map(_variable, board.variables),
                _auditor(),
            ]
        },
        "panels": list(_panels(board)),
    }


def _panels(board: Board) -> Iterator[dict[str, Any]]:
    pen = Pen()
    for row in board.rows:
        yield _row(row, pen)
        for panel in row.panels:
            yield _panel(panel, pen)


def _row(row: Row, pen: Pen) -> dict[str, Any]:
    pen.new_line()
    made = {"id": pen.take_id(), "type": "row", "title": row.title, "collapsed": False, "panels": []}
    made["gridPos"] = pen.place(COLUMNS, 1)
    pen.new_line()
    return made


def _panel(panel: Panel, pen: Pen) -> dict[str, Any]:
    return {
        "id": pen.take_id(),
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": pen.place(panel.width, panel.height),
        "targets": list(_targets(panel)),
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
    }


def _targets(panel: Panel) -> Iterator[dict[str, Any]]:
    for number, (legend, query) in enumerate(panel.queries.items()):
        target: dict[str, Any] = {
            "refId": chr(ord("A") + number),
            "datasource": SOURCE,
            "expr": query.replace("<>", SELECTED),
            "legendFormat": legend,
        }
        if panel.kind in ("stat", "gauge", "bargauge", "table"):
            target |= {"instant": True, "range": False}
        if panel.kind == "table":
            target["format"] = "table"
        yield target


def _defaults(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": panel.base_color, "value": None}]
    steps += [{"color": color, "value": value} for value, color in panel.steps.items()]
    made: dict[str, Any] = {
        "unit": panel.unit,
        "color": {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"},
        "thresholds": {"mode": "absolute", "steps": steps},
        "noValue": "-",
    }
    if panel.words:
        texts = {str(value): {"text": text, "index": index} for index, (value, text) in enumerate(panel.words.items())}
        made["mappings"] = [{"type": "value", "options": texts}]
    if panel.unit == "percentunit":
        made |= {"min": 0, "max": 1}
    elif panel.kind in ("timeseries", "bargauge"):
        made["min"] = 0
    if panel.kind == "timeseries":
        made["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 25 if panel.is_stacked else 5,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "line" if panel.steps else "off"},
        }
    return made


def _options(panel: Panel) -> Mapping[str, Any]:
    reduced = {"values": False, "calcs": ["lastNotNull"], "fields": ""}
    match panel.kind:
        case "stat":
            graph = {"graphMode": "none", "textMode": "auto", "justifyMode": "auto", "orientation": "auto"}
            return {"colorMode": "background", "reduceOptions": reduced, **graph}
        case "gauge":
            return {"reduceOptions": reduced, "showThresholdMarkers": True}
        case "bargauge":
            return {"reduceOptions": reduced, "displayMode": "basic", "orientation": "horizontal"}
        case "timeseries":
            legend = {
                "displayMode": "table",
                "placement": "bottom",
                "calcs": ["lastNotNull", "max"],
                "showLegend": True,
            }
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
        case "state-timeline":
            return {"showValue": "never", "mergeValues": True, "legend": {"displayMode": "list", "placement": "bottom"}}
        case _:
            return {"showHeader": True}


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def _auditor() -> dict[str, Any]:
    """Where browsers find the auditors; the chart puts the URL of its release in place of this one."""
    value = {"selected": True, "text": AUDITOR, "value": AUDITOR}
    return {
        "name": "auditor",
        "label": "Auditor",
        "description": "URL of the auditors' API, for links to reports.",
        "type": "textbox",
        "query": AUDITOR,
        "current": value,
        "options": [value],
    }


def _variable(name: str) -> dict[str, Any]:
    """All is any value, and none: ``.*`` matches series without the label as well."""
    query = f'label_values(bkheal_build_info{{cluster=~"$cluster"}}, {name})'
    if name == "cluster":
        query = "label_values(bkheal_build_info, cluster)"
    elif name == "kind":
        query = f"label_values(bkheal_audit_last_start_timestamp_seconds{{{SELECTED}}}, kind)"
    elif name == "instance":
        query = f"label_values(bkheal_build_info{{{SELECTED}}}, instance)"
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _links() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "bkheal",
        "tags": ["bkheal"],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
    }


def _report() -> dict[str, Any]:
    return {
        "type": "link",
        "title": "Report of the last run",
        "tooltip": "What the newest audit found.",
        "icon": "doc",
        "url": "${auditor}/reports/latest/",
        "targetBlank": True,
        "includeVars": False,
        "keepTime": False,
    }


def _alerts() -> dict[str, Any]:
    expression = f'ALERTS{{alertname=~"Bkheal.*",alertstate="firing",{SELECTED}}}'
    return {
        "name": "Alerts",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": expression,
        "titleFormat": "{{alertname}}",
        "textFormat": "{{severity}}",
    }


def write(folder: Path, boards: Sequence[Board] = BOARDS) -> None:
    """Write all dashboards."""
    folder.mkdir(parents=True, exist_ok=True)
    for board in boards:
        (folder / f"{board.name}.json").write_text(json.dumps(document(board), indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    where = ROOT / "helm" / "bkheal" / "files" / "dashboards"
    parser.add_argument("--out", type=Path, default=where, help="directory to write to")
    write(parser.parse_args().out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
