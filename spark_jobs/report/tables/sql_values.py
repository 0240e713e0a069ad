"""Values of the answer to an SQL question, as JSON and as text. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any


def as_json(value: object) -> Any:
    """Return the value for JSON: times as RFC 3339 in UTC, null for NaN and infinities, text for other types."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return as_json(int(value) if value == value.to_integral_value() else float(value))
        case datetime():
            moment = value if value.tzinfo else value.replace(tzinfo=UTC)
            return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return value.hex()
        case Mapping():
            return {str(name): as_json(each) for name, each in value.items()}
        case list() | tuple():
            return [as_json(each) for each in value]
        case _:
            return str(value)


def as_text(value: object) -> str:
    """Return the value as the text of a cell."""
    plain = as_json(value)
    if isinstance(plain, str):
        return plain
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(plain, float):
        return f"{plain:.6g}"
    if isinstance(plain, list) and all(isinstance(each, str) for each in plain):
        return ",".join(plain)
    return json.dumps(plain)
