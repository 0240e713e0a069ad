"""A check that cannot be made in a run of everything does not end the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.bookies.topology import InvalidTopologyError
from bookie.metadata.port import AccessDeniedError
from bookie.model.errors import PermanentError
from spark_jobs.report.counts import LintCounts
from spark_jobs.runs.kinds.everything import AllFurtherChecks


class WithoutLint(AllFurtherChecks):
    def _lint(self, *_: object) -> tuple[tuple[Any, ...], LintCounts, str]:
        return (), LintCounts(), ""


@pytest.mark.parametrize("error", [InvalidTopologyError("not JSON"), AccessDeniedError("may not read /bookies")])
def test_a_topology_that_cannot_be_read_prevents_only_the_placement_check(error: PermanentError) -> None:
    def topology(file: None) -> None:
        raise error

    settings = SimpleNamespace(with_inventory=False, topology_file=None)
    context = SimpleNamespace(settings=settings, cluster=SimpleNamespace(topology=topology))
    scan = SimpleNamespace(suspects=None, settled=None)
    scanned = SimpleNamespace(bookies=Bookies(frozenset(), frozenset(), frozenset()))
    checks = WithoutLint(cast(Any, context))
    with checks.judged(cast(Any, scan), cast(Any, scanned), frozenset(), cast(Any, None)) as found:
        assert [(part.check, part.problem) for part in found.parts if part.problem] == [("placement", str(error))]
