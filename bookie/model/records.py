"""The form of bkheal's records: JSON objects with a format number, read strictly.

Every record under the state root has this form. A new field with a default does not change the format: an older release
ignores it, and drops it if it rewrites the record. Any other change gives that kind of record a higher number. To an
older release a record of a newer format is unreadable, like a damaged one: each kind of record has its own safe answer
to that.

Source: docs/failure-model.md#state-under-bkheal.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, TypeVar

import msgspec

from bookie.model.errors import PermanentError

FORMAT: Final = 1
"""The format of records that never changed. A record without a number has it: the first releases wrote none."""

_SHOWN_MAX: Final = 80
"""Bytes of an unreadable record that an error quotes."""

T = TypeVar("T")


class UnreadableRecordError(PermanentError):
    """A record is damaged, or a newer release wrote it in a format that this one cannot read."""


def encode_record(record: Any, *, without: Collection[str] = (), number: int = FORMAT) -> bytes:
    """Return the content of a record's node. Equal records give equal bytes.

    Args:
        record: a dataclass with plain values, enums, sets and other such dataclasses.
        without: names of fields that the node's path contains already.
        number: the format of this kind of record.
    """
    fields = msgspec.to_builtins(record, order="deterministic")
    return msgspec.json.encode({"format": number, **{name: fields[name] for name in fields if name not in without}})


def decode_record(
    data: bytes, kind: type[T], *, required: Collection[str] = (), newest: int = FORMAT, **known: object
) -> T:
    """Return the record in a node's content. Fields that ``kind`` does not have are ignored.

    Args:
        data: the content of the node.
        kind: the dataclass of the record.
        required: names of fields that must be present although they have defaults.
        newest: the newest format of this kind of record; ``kind`` can hold the earlier ones too.
        known: values of fields that the node does not contain.

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
