"""The recorded evidence from bookies' answers."""

from __future__ import annotations

from bookie.model.ids import BookieId, EntryId
from bookie.wire.port import Status
from replicator.knowledge.evidence import DETAIL_MAX, Answer, UnreadableEntry, describe

_TOLD = "a frame of 9000069 bytes exceeds the limit of 5304096: raise --frame-bytes-max"


def test_an_answer_tells_why() -> None:
    unreadable = UnreadableEntry(
        EntryId(3), (Answer(BookieId("a"), Status.IO_ERROR, _TOLD), Answer(BookieId("b"), Status.NO_ENTRY))
    )
    assert describe((unreadable,), 1) == f"entry 3: a=IO_ERROR ({_TOLD}), b=NO_ENTRY"


def test_the_beginning_of_a_long_reason_is_told() -> None:
    told = str(Answer(BookieId("a"), Status.UNREACHABLE, "x" * 10_000))
    assert told == f"a=UNREACHABLE ({'x' * (DETAIL_MAX - 1)}…)"
