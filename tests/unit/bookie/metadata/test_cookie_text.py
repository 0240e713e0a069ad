"""Cookies, tasks, locks and check times in Apache's formats, and the effect of damage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.bookies.cookies import Cookie, InvalidCookieError, decode_cookie, encode_cookie
from bookie.metadata.runs.check_times import CheckKind, decode_check_time, encode_check_time
from bookie.metadata.tasks.format import (
    TaskData,
    UnreadableTaskError,
    decode_lock,
    decode_task,
    encode_lock,
    encode_task,
    is_tasks_layout,
)
from bookie.model.ids import BookieId

INSTANCE = "7b4a9a3c-2b7e-4c43-9d0a-111111111111"
COOKIE = Cookie(BookieId("bk1:3181"), ("/data/jrn",), ("/data/led",), INSTANCE)
TEXT = (
    b'5\nbookieHost: "bk1:3181"\njournalDir: "/data/jrn"\nledgerDirs: "1\\t/data/led"\ninstanceId: "'
    + INSTANCE.encode()
    + b'"\n'
)


def test_cookie_has_the_text_format_of_apache() -> None:
    assert encode_cookie(COOKIE) == TEXT
    assert decode_cookie(TEXT) == COOKIE
    several = replace(
        COOKIE, journal_dirs=("/j1", "/j2"), ledger_dirs=("/l1", "/l2"), index_dirs=("/i",), instance_id=None
    )
    assert encode_cookie(several) == (
        b'5\nbookieHost: "bk1:3181"\njournalDir: "/j1,/j2"\nledgerDirs: "2\\t/l1\\t/l2"\nindexDirs: "1\\t/i"\n'
    )
    assert decode_cookie(encode_cookie(several)) == several


def test_older_layouts_are_read_and_written_in_the_current_one() -> None:
    fourth = decode_cookie(TEXT.replace(b"5\n", b"4\n", 1))
    assert fourth == COOKIE
    assert fourth.layout == 4
    assert encode_cookie(fourth) == TEXT
    third = decode_cookie(b"3\nbk1:3181\n/data/jrn\n2\t/l1\t/l2\n")
    assert (third.bookie_id, third.journal_dirs, third.ledger_dirs) == ("bk1:3181", ("/data/jrn",), ("/l1", "/l2"))


def test_empty_instance_id_and_index_directories_count_as_absent() -> None:
    text = TEXT.replace(INSTANCE.encode(), b"") + b'indexDirs: " "\n'
    assert decode_cookie(text) == replace(COOKIE, instance_id=None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"5",
        b"five\n",
        b"2\nbk1\n/j\n1\t/l\n",
        TEXT.replace(b"bookieHost", b"bookieGuest"),
        TEXT.replace(b"1\\t", b"2\\t"),
        TEXT.replace(b"bk1:3181", b"a/b"),
        TEXT[:30],
        b"5\n\xff\xfe",
        b"3\nbk1:3181",
        b"5" * 5_000 + b"\n",
    ],
)
def test_damaged_cookie_is_invalid(data: bytes) -> None:
    with pytest.raises(InvalidCookieError):
        decode_cookie(data)


@given(st.binary(max_size=80) | st.binary(max_size=80).map(b"5\n".__add__) | st.binary(max_size=80).map(b"3\n".__add__))
def test_arbitrary_bytes_are_a_cookie_or_invalid(data: bytes) -> None:
    try:
        decode_cookie(data)
    except InvalidCookieError:
        return


directories = st.lists(
    st.text(st.characters(exclude_characters="\t,", exclude_categories=["Cs"]), min_size=1), min_size=1
)


@given(directories.map(tuple), directories.map(tuple), st.none() | st.text("0123456789abcdef-", min_size=1))
def test_cookie_is_read_back_as_written(
    journals: tuple[str, ...], ledgers: tuple[str, ...], instance: str | None
) -> None:
    cookie = Cookie(BookieId("b"), journals, ledgers, instance)
    assert decode_cookie(encode_cookie(cookie)) == cookie


def test_task_text_of_other_writers_is_read() -> None:
    assert decode_task(b"") == TaskData((), -1)
    assert decode_task(b"replica: 'a' replica: \"b\\x3a1\"") == TaskData((BookieId("a"), BookieId("b:1")), -1)
    assert encode_task(TaskData((), -1)) == b""


@given(st.lists(st.text(max_size=10)), st.just(-1) | st.integers(0, 1 << 62))
def test_task_is_read_back_as_written(missing: list[str], ctime_ms: int) -> None:
    data = TaskData(tuple(map(BookieId, missing)), ctime_ms)
    assert decode_task(encode_task(data)) == data


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_task_or_unreadable(data: bytes) -> None:
    try:
        decode_task(data)
    except UnreadableTaskError:
        return


NAMES = ['"a:1"', '"b.example:3181"', '""', "'a'", '"a\\n"', '"\u00e4"']
TIMES = ["1700000000000", "0", "010", "-5", "9223372036854775807"]
lines = st.sampled_from(["x: 1\n", "# a\n", *(f"replica: {n}\n" for n in NAMES), *(f"ctime: {t}\n" for t in TIMES)])


@given(st.lists(lines, max_size=5).map("".join))
def test_the_fast_task_parser_agrees_with_the_library(text: str) -> None:
    quick, slow = [_read(data) for data in (text.encode(), text.encode() + b" ")]  # the fast reader rejects the second
    assert quick == slow


def _read(data: bytes) -> TaskData | None:
    try:
        return decode_task(data)
    except UnreadableTaskError:
        return None


def test_the_text_of_a_lock_is_encoded_and_decoded() -> None:
    assert encode_lock("host.example") == b'bookieId: "host.example"\n'
    assert encode_lock("") == b""
    assert [decode_lock(data) for data in (b'bookieId: "h"', b"", b"\xff")] == ["h", "", ""]


@pytest.mark.parametrize("data", [b"", b'type: "OTHER"\nversion: 1\n', b'type: "BASIC"\nversion: 2\n', b"\xff"])
def test_other_layouts_of_tasks_are_recognized(data: bytes) -> None:
    assert not is_tasks_layout(data)
    assert is_tasks_layout(b'type: "BASIC"\nversion: 1\n')


@pytest.mark.parametrize("kind", CheckKind)
def test_the_time_of_a_check_matches_the_vector(kind: CheckKind) -> None:
    data = encode_check_time(kind, 1700000000000)
    assert data.hex() == "0880d095ffbc31"
    assert decode_check_time(kind, data) == 1700000000000
    assert decode_check_time(kind, b"") == decode_check_time(kind, b"\xff") == -1
