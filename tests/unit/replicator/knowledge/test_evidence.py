"""The evidence that is recorded from the answers of bookies."""

from __future__ import annotations

from bookie.model.ids import BookieId, EntryId
from bookie.wire.port import Status
from replicator.knowledge.evidence import DETAIL_MAX, BookieAnswer, UnreadableEntry, describe
from replicator.knowledge.refusals import fenced

_REASON = "a frame of 9000069 bytes exceeds the limit of 5304096: raise --frame-bytes-max"


def test_the_text_of_an_answer_contains_its_reason() -> None:
    unreadable = UnreadableEntry(
        EntryId(3),
        (BookieAnswer(BookieId("a"), Status.IO_ERROR, _REASON), BookieAnswer(BookieId("b"), Status.NO_ENTRY)),
    )
    assert describe((unreadable,), 1) == f"entry 3: a=IO_ERROR ({_REASON}), b=NO_ENTRY"


def test_a_long_reason_is_shortened() -> None:
    text = str(BookieAnswer(BookieId("a"), Status.UNREACHABLE, "x" * 10_000))
    assert text == f"a=UNREACHABLE ({'x' * (DETAIL_MAX - 1)}…)"


def test_the_text_of_a_fenced_copy_contains_the_cause_and_the_remedy() -> None:
    cause = (
        "an Apache bookie refuses a ledger that its collector deleted, until it is restarted or is not asked for 7 days"
    )
    assert str(fenced(BookieId("t"))) == f"t=FENCED ({cause})"
    assert str(fenced(BookieId("t"), "write refused")) == f"t=FENCED ({cause}: write refused)"
