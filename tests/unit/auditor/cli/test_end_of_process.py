"""The end of a process that ran a command."""

from __future__ import annotations

import gc
import sys

import pytest

from auditor.cli import main


def test_no_object_of_a_command_is_searched_for_garbage_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = gc.get_freeze_count()
    monkeypatch.setattr(main, "main", lambda: sys.exit(5))
    with pytest.raises(SystemExit) as ended:
        main.run_process()
    assert ended.value.code == 5
    assert gc.get_freeze_count() > frozen
