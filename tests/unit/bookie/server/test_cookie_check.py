"""The cookies of the directories compared with the one in ZooKeeper: every difference is listed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auditor.cli.bookie import cookie
from bookie.metadata.bookies.cookies import Cookie, encode_cookie
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.server.joining.cookie_check import (
    DirectoryCookie,
    Mismatch,
    UnreadableDirectoryError,
    directory_cookies,
    mismatches,
    misplaced,
)
from bookie.server.joining.directories import CURRENT, INCARNATION_FILE, VERSION_FILE

STORED = Cookie(BookieId("bk1:3181"), ("/j",), ("/l", "/m"), "cluster")


def found(cookie: Cookie | None, problem: str | None = None, incarnation: str | None = "uuid") -> DirectoryCookie:
    return DirectoryCookie("/j", cookie, problem, incarnation)


def names(
    cookie: Cookie, stored: Cookie = STORED, instance_id: str = "cluster", last: str | None = "uuid"
) -> list[str]:
    return [mismatch.field for mismatch in mismatches(found(cookie), stored, instance_id, last)]


def test_equal_cookies_have_no_mismatch() -> None:
    assert names(STORED) == []
    assert names(replace(STORED, layout=4)) == []


def test_missing_index_directories_count_as_the_ledger_directories() -> None:
    assert names(replace(STORED, index_dirs=("/l", "/m"))) == []
    assert names(replace(STORED, index_dirs=("/i",))) == ["index_dirs"]


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        (replace(STORED, bookie_id=BookieId("bk2:3181")), ["bookie_id"]),
        (replace(STORED, journal_dirs=("/k",)), ["journal_dirs"]),
        (replace(STORED, ledger_dirs=("/m", "/l")), ["ledger_dirs", "index_dirs"]),
        (replace(STORED, instance_id=None), ["instance_id", "instance_id of the cluster"]),
    ],
)
def test_each_field_that_differs_is_named(changed: Cookie, fields: list[str]) -> None:
    assert names(changed) == fields


def test_the_cluster_and_the_incarnation_are_compared() -> None:
    assert names(STORED, instance_id="other") == ["instance_id of the cluster"]
    assert names(STORED, last="newer") == ["incarnation"]
    assert names(STORED, last=None) == ["incarnation"]
    assert mismatches(found(STORED, incarnation=None), STORED, "cluster", None) == []  # an Apache bookie


def test_a_directory_without_a_cookie_is_a_mismatch() -> None:
    assert mismatches(found(None), STORED, "cluster", "uuid") == [
        Mismatch("/j", "VERSION", "there is no such file", "a cookie")
    ]
    assert mismatches(found(None, "damaged"), STORED, "cluster", "uuid") == [
        Mismatch("/j", "VERSION", "damaged", "a cookie")
    ]


def test_directories_at_other_places_or_in_another_order_than_the_cookie_names_are_mismatches(tmp_path: Path) -> None:
    first, second, moved = (tmp_path / name for name in ("l", "m", "elsewhere"))
    recorded = [str(first), str(second)]

    def fields(*given: Path) -> list[tuple[str, str | None]]:
        return [(each.field, each.found) for each in misplaced("ledger_dirs", given, recorded)]

    assert fields(first, second) == fields(first) == fields(second) == []
    assert fields(second, first) == [("order of ledger_dirs", f"{second},{first}")]
    assert fields(first, moved) == [("place among ledger_dirs", str(moved))]
    moved.symlink_to(second)
    assert fields(first, moved) == []


async def test_directories_are_read_and_damage_is_distinguished_from_absence(tmp_path: Path) -> None:
    whole, damaged, empty = (tmp_path / name for name in ("whole", "damaged", "empty"))
    for directory in (whole, damaged, empty):
        (directory / CURRENT).mkdir(parents=True)
    (whole / CURRENT / VERSION_FILE).write_bytes(encode_cookie(STORED))
    (whole / CURRENT / INCARNATION_FILE).write_text("uuid\n")
    (damaged / CURRENT / VERSION_FILE).write_bytes(b"\xff\xfe")
    first, second, third = await directory_cookies([whole, damaged, empty])
    assert first == DirectoryCookie(str(whole), STORED, None, "uuid")
    assert second.cookie is None
    assert second.problem
    assert third == DirectoryCookie(str(empty), None, None, None)
    assert not (empty / CURRENT / VERSION_FILE).exists()


async def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / CURRENT / VERSION_FILE).mkdir(parents=True)
    with pytest.raises(UnreadableDirectoryError, match="VERSION cannot be read"):
        await directory_cookies([tmp_path])


def test_the_command_fails_if_one_of_the_directories_has_no_cookie(tmp_path: Path) -> None:
    whole, empty = tmp_path / "whole", tmp_path / "empty"
    for directory in (whole, empty):
        (directory / CURRENT).mkdir(parents=True)
    (whole / CURRENT / VERSION_FILE).write_bytes(encode_cookie(STORED))
    for journal, exit_code in ((whole, ExitCode.OK), (empty, ExitCode.FAILED)):
        words = ["show", "--journal-dir", str(journal), "--ledger-dir", str(whole)]
        assert CliRunner().invoke(cookie.app, words).exit_code == exit_code
