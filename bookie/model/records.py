"""The form of bkheal's records: JSON objects with a format number, read strictly.

Every record under the state root has this form. A new field with a default does not change the format: an older release
ignores it, and drops it if it rewrites the record. Any other change gives that kind of record a higher number. For an
older release a record of a newer format is unreadable, like a damaged one: each kind of record has its own safe
reaction.

Source: docs/failure-model.md#state-under-bkheal.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, TypeVar

import msgspec

from bookie.model.errors import PermanentError

FORMAT: Final = 1
"""The format of every kind of record that never changed. A record without a number has it: the first releases wrote
none."""

_SHOWN_MAX: Final = 80
"""Most bytes of an unreadable record quoted in an error."""

T = TypeVar("T")


class UnreadableRecordError(PermanentError):
    """A record is damaged, or was written by a newer release in an unknown format."""


def encode_record(record: Any, *, without: Collection[str] = (), number: int = FORMAT) -> bytes:
    """Return the content of a record's node. Equal records give equal bytes.

    Args:
        record: a dataclass with plain values, enums, sets and other such dataclasses.
        without: names of fields already contained in the node's path.
        number: the format of this kind of record.
    """
    fields = msgspec.to_builtins(record, order="deterministic")
    return msgspec.json.encode({"format": number, **{name: fields[name] for name in fields if name not in without}})


def decode_record(
    data: bytes, kind: type[T], *, required: Collection[str] = (), newest: int = FORMAT, **known: object
) -> T:
    """Return the record in a node's content. Fields unknown to ``kind`` are ignored.

    Args:
        data: the content of the node.
        kind: the dataclass of the record.
        required: names of fields with a default that must be present nevertheless.
        newest: the newest format of this kind of record; ``kind`` can also hold earlier ones.
        known: values of fields not contained in the node.

    Raises:
        UnreadableRecordError: the content is not a record of this kind, or has a newer format.
    """
    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
        found = msgspec.convert(fields.get("format", 1), int)
        if found > newest:
            raise UnreadableRecordError(f"format {found} of a newer release; this release reads up to {newest}")
        if missing := sorted(set(required) - fields.keys()):
            raise UnreadableRecordError(f"no field {missing[0]} in {data[:_SHOWN_MAX]!r}")
        return msgspec.convert(fields | known, kind)
    except (ValueError, RecursionError) as error:
        raise UnreadableRecordError(f"{error} in {data[:_SHOWN_MAX]!r}") from error
