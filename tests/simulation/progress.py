"""The progress of a long run of histories, in a file, to continue the run after an interruption.

The file has a line for each history, in the order in which they ended. If the interruption cut a line short, its
history runs again. The file is valid only for the code with which it was made, which is not checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from tests.simulation.history import Outcome
from tests.simulation.truth import Violation


def read_progress(path: Path) -> list[Outcome]:
    """Return the outcomes of the finished histories; none if there is no file."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        path.write_text("".join(lines[:-1]))
        lines = lines[:-1]
    return [_outcome(line) for line in lines]


def noting(outcomes: Iterable[Outcome], path: Path) -> Iterator[Outcome]:
    """Yield the outcomes, each after its line was written to the file."""
    with path.open("a") as file:
        for outcome in outcomes:
            file.write(json.dumps({**asdict(outcome), "lines": ()}) + "\n")
            file.flush()
            yield outcome


def _outcome(line: str) -> Outcome:
    fields = json.loads(line)
    violations = tuple(Violation(**violation) for violation in fields["violations"])
    return Outcome(**{**fields, "violations": violations, "lines": ()})
