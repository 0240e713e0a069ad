"""Valid protobuf messages with values that no honest peer sends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

MessageT = TypeVar("MessageT", bound=Message)

_INTEGERS: Final = (0, 1, -1, -2, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 32) - 1, (1 << 63) - 1, -(1 << 63))
_BYTES: Final = (b"", b"\0", b"\xff" * 40, bytes(32), bytes(70_000))
_TEXTS: Final = ("", "\0", "\u00e9" * 300, "bk1:99999", "../..", "a:b:c")
_REPEATED_MAX: Final = 1000


def hostile(message: MessageT) -> Iterator[MessageT]:
    """Yield copies of a message, each with a hostile value in one field, or with too many values of one field."""
    for field in message.DESCRIPTOR.fields:
        for value in _values(message, field):
            changed = type(message)()
            changed.CopyFrom(message)
            with suppress(ValueError):  # out of range, or not a number of this enum
                _set(changed, field, value)
                yield changed


def _values(message: Message, field: Any) -> Iterator[Any]:
    """Return values for a field. For a repeated field, these are lists."""
    now = getattr(message, field.name)
    if field.is_repeated:
        items = list(now)
        yield []
        yield (items or [_default(field)]) * _REPEATED_MAX
        for each in _single(items[0] if items else None, field):
            yield [each, *items]
            yield [*items, each]
    else:
        yield None
        yield from _single(now, field)


def _single(now: Any, field: Any) -> Iterator[Any]:
    if field.message_type is not None:
        if now is not None:
            yield from hostile(now)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        yield from _BYTES
    elif field.type == FieldDescriptor.TYPE_STRING:
        yield from _TEXTS
    elif field.type == FieldDescriptor.TYPE_BOOL:
        yield from (False, True)
    else:
        yield from _INTEGERS


def _default(field: Any) -> Any:
    if field.message_type is not None:
        return field.message_type._concrete_class()
    return {FieldDescriptor.TYPE_BYTES: b"", FieldDescriptor.TYPE_STRING: ""}.get(field.type, 0)


def _set(message: Message, field: Any, value: Any) -> None:
    message.ClearField(field.name)
    if value is None:
        return
    if field.is_repeated:
        getattr(message, field.name).extend(value)
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(value)
    else:
        setattr(message, field.name, value)
