"""A check that cannot be made in a run of everything does not end the run."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.bookies.topology import InvalidTopologyError
from bookie.metadata.port import AccessDeniedError
from bookie.model.errors import PermanentError
from spark_jobs.report.counts import LintCounts
from spark_jobs.runs.kinds import confirmed_rows
from spark_jobs.runs.kinds.everything import AllFurtherChecks

ERRORS = [InvalidTopologyError("not JSON"), AccessDeniedError("may not read /bookies")]
NO_BOOKIES = Bookies(frozenset(), frozenset(), frozenset())


class WithoutLint(AllFurtherChecks):
    def _lint(self, *_: object) -> tuple[tuple[Any, ...], LintCounts, str]:
        return (), LintCounts(), ""


class NoRows:
    """A table without rows."""

    def _same(self, *_: object) -> NoRows:
        return self

    select = distinct = persist = unpersist = _same

    def count(self) -> int:
        return 0


def context_of(error: PermanentError) -> Any:
    def topology(file: None) -> None:
        raise error

    settings = SimpleNamespace(with_inventory=False, topology_file=None)
    cluster = SimpleNamespace(topology=topology)
    return SimpleNamespace(settings=settings, cluster=cluster, tasks=lambda *_, **__: nullcontext())


@pytest.mark.parametrize("error", ERRORS)
def test_a_topology_that_cannot_be_read_prevents_only_the_placement_check(error: PermanentError) -> None:
    scan = SimpleNamespace(suspects=None, settled=None)
    scanned = SimpleNamespace(bookies=NO_BOOKIES)
    checks = WithoutLint(context_of(error))
    with checks.judged(cast(Any, scan), cast(Any, scanned), frozenset(), cast(Any, None)) as found:
        assert [(part.check, part.problem) for part in found.parts if part.problem] == [("placement", str(error))]


@pytest.mark.parametrize("error", ERRORS)
def test_ledgers_of_a_snapshot_are_confirmed_without_a_topology(
    error: PermanentError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirmed_rows, "metadata_faults", lambda rows: rows)
    settled: Any = NoRows()
    with ExitStack() as stack:
        rows = confirmed_rows.confirmed_rows(context_of(error), stack, settled, frozenset(), NO_BOOKIES)
    assert rows is settled
