"""Parts of the JSON schemas: types, patterns of names, and the functions that combine them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from auditor.api.http.documents import API_VERSION
from bookie.model.ids import LEDGER_ID_MAX

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
TIME: Final[Schema] = {"type": ["string", "null"], "format": "date-time"}


def ref(name: str) -> Schema:
    """Return a reference to a schema of the description."""
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: Schema) -> Schema:
    """Return a schema that also accepts null."""
    return {**schema, "type": [schema["type"], "null"]}


def one_of(values: list[str], *, or_null: bool = False) -> Schema:
    """Return the schema of a text that is one of ``values``."""
    return {"enum": [*values, None]} if or_null else {"type": "string", "enum": values}


def list_of(of: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": of}


def map_of(of: Schema) -> Schema:
    """Return the schema of an object whose members all have the schema ``of``."""
    return {"type": "object", "additionalProperties": of}


def fields_of(properties: Mapping[str, Schema]) -> Schema:
    """Return the schema of an object of an answer, which has all these members."""
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


def body_of(properties: Mapping[str, Schema], *required: str) -> Schema:
    """Return the schema of the body of a request, which has no other members."""
    fields: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return {**fields, "required": list(required)} if required else fields


def document_of(kind: str, properties: Mapping[str, Schema]) -> Schema:
    """Return the schema of a document of the API."""
    return fields_of({"apiVersion": {"const": API_VERSION}, "kind": {"const": kind}, **properties})


BOOKIE_ID_PATTERN: Final = r"^[a-zA-Z0-9:-_.\-]{1,256}$"
"""Ids of bookies, as in ``bookie.model.ids``."""
WINDOW_TARGET_PATTERN: Final = (
    r"^(?:[a-zA-Z0-9:-_.\-]{1,256}|rack:/?[A-Za-z0-9._:@=+\-]{1,128}(?:/[A-Za-z0-9._:@=+\-]{1,128}){0,7})$"
)
"""Targets of maintenance windows: the id of a bookie, or the location of a rack as in ``bookie.model.topology``."""
LEDGER_ID: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": LEDGER_ID_MAX}
OWNER: Final[Mapping[str, Schema]] = {
    "tenant": nullable(TEXT),
    "namespace": {**nullable(TEXT), "description": "Of Pulsar, with its tenant. Null: the ledger does not name it."},
    "topic": {**nullable(TEXT), "description": "The name in full."},
    "component": {**nullable(TEXT), "description": "What the ledger contains: managed-ledger, cursor, schema, ..."},
    "subscription": nullable(TEXT),
}
BACKLOG_PART: Final = fields_of({"ledgers": COUNT, "bytes_estimate": COUNT, "oldest": TIME})
WINDOW_FIELDS: Final = {
    "target": {**TEXT, "description": "A bookie, or rack: and the location of a rack."},
    "bookies": list_of(TEXT),
    "by": TEXT,
    "since": TIME,
    "until": {**TIME, "description": "The window ends automatically at this time."},
    "hold_critical": {**BOOLEAN, "description": "Whether ledgers with one copy left wait as well."},
    "note": nullable(TEXT),
}
WINDOW: Final = fields_of(WINDOW_FIELDS)
