"""Fixed histories, old failures, planted defects, and the simulator's own promises.

The histories are the same in every run. Searches for new failures use other seeds: ``make simulate``, and the suites of
``make test-long``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.simulation.command import read_corpus
from tests.simulation.defects import DEFECTS, SAFETY_RULES, SEARCHED_IN
from tests.simulation.detection import REFRESH, TABLE, read_found, table
from tests.simulation.profiles import FIRST_WITH_LOST_WRITES, NAMED, PROFILES

HISTORIES: Final = 3 * len(PROFILES)
CHEAPEST: Final = {
    "I1": "change-starts-late",
    "I2": "change-ignores-state",
    "I3": "one-denial-is-enough",
    "I4": "close-over-close",
    "I5": "unconfirmed-entries-readable",
    "I6": "member-twice",
    "I8": "replacements-stored-early",
    "I9": "metadata-overwritten",
    "I10": "deleted-ledger-recreated",
    "I11": "incarnation-unchecked",
    "I13": "corrupt-is-absent",
    "I14": "recovered-lac-changed",
    "I15": "directory-not-synced",
    "I16": "only-last-fragment-kept",
    "I17": "boundary-one-short",
    "I18": "absence-is-denial",
    "I19": "failed-directory-trusted",
    "I24": "brake-ignored",
    "J": "log-id-reused",
    "LOCK": "task-deleted-blindly",
    "PACE": "critical-not-preferred",
    "R39": "delay-not-respected",
    "R40": "lost-disks-not-urgent",
    "R43": "memory-by-mean-size",
    "R44": "copy-progress-ignored",
    "R57": "debt-not-recorded",
    "S8": "read-only-target",
    "S11": "pull-ends-early",
    "S14": "turn-outlives-session",
    "SPACE": "cut-off-log-kept",
    "T4": "recovery-below-ack-quorum",
}
"""For each rule, the planted defect that is found with it in the shortest histories."""
ROOT: Final = Path(__file__).parents[2]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process, with a fixed iteration order of sets. The test's timeout ends a hang."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def histories() -> subprocess.CompletedProcess[str]:
    """Run the first histories of all profiles in turn."""
    return simulate("run", "--first", "0", "--seeds", str(HISTORIES), "--jobs", "1", "--output", "json")


def test_simulated_histories_break_no_rule(histories: subprocess.CompletedProcess[str]) -> None:
    assert histories.returncode == 0, histories.stderr[-4000:]
    found: dict[str, Any] = json.loads(histories.stdout)
    assert found["histories"] == HISTORIES
    assert found["counted"] > 0.7 * HISTORIES
    assert found["acked_median"] >= 30
    assert found["faults_median"] >= 3


def test_histories_with_harsh_servers_break_no_rule() -> None:
    """One history of each profile."""
    count = str(len(NAMED))
    ended = simulate("run", "--first", str(FIRST_WITH_LOST_WRITES), "--seeds", count, "--jobs", "1", "--output", "json")
    assert ended.returncode == 0, ended.stderr[-4000:]


def test_a_seed_gives_the_same_history_in_another_process_and_after_others(
    histories: subprocess.CompletedProcess[str],
) -> None:
    digests = json.loads(histories.stdout)["digests"]
    seeds = [str(seed) for seed in range(2 * len(PROFILES), len(PROFILES), -2)]
    again = simulate("replay", *(part for seed in seeds for part in ("--seed", seed)))
    assert [line.rpartition(" ")[2] for line in again.stdout.splitlines()] == [digests[seed] for seed in seeds]


@pytest.mark.parametrize("is_gate", [True, pytest.param(False, marks=pytest.mark.long)])
def test_seeds_that_failed_before_do_not_fail_again(is_gate: bool) -> None:
    ended = simulate("replay", "--corpus", *(["--gate"] if is_gate else []))
    assert ended.returncode == 0, ended.stdout[-4000:]
    assert ended.stdout.count("digest") == len(read_corpus(is_gate=is_gate)) > 0


def test_a_planted_defect_of_each_rule_is_found_exactly_as_the_published_table_shows() -> None:
    records = read_found()
    assert {rule: records[name].rule for rule, name in CHEAPEST.items()} == {
        found.rule: found.rule for found in records.values()
    }, "add the defect of a new rule that is found in the shortest history"
    ended = simulate("defects", "--known", "--jobs", "1", *(f"--only={name}" for name in CHEAPEST.values()))
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]


@pytest.mark.long
@pytest.mark.timeout(1800)  # several hundred histories, some of which end at the limit of turns
def test_each_planted_defect_is_found_exactly_as_the_published_table_shows() -> None:
    ended = simulate("defects", "--known", "--jobs", "1")
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]


def test_an_outdated_record_is_a_failure_that_explains_what_to_do(tmp_path: Path) -> None:
    records = tmp_path / "records.json"
    records.write_text(json.dumps([asdict(replace(read_found()["acks-out-of-order"], rule="I2"))]))
    ended = simulate("defects", "--known", "--jobs", "1", "--only", "acks-out-of-order", "--records", str(records))
    assert ended.returncode == 1
    assert "breaks I2, and it breaks I1" in ended.stdout
    assert REFRESH in ended.stdout


def test_the_published_table_matches_the_records() -> None:
    assert TABLE.read_text() == table(), REFRESH
    assert set(read_found()) == set(DEFECTS), REFRESH


def test_each_safety_rule_is_broken_by_a_planted_defect() -> None:
    assert list(SAFETY_RULES) == [f"S{number}" for number in range(1, 21)]
    assert {name for names in SAFETY_RULES.values() for name in names} <= set(DEFECTS)
    assert set(SEARCHED_IN) <= set(DEFECTS)
    assert set(SEARCHED_IN.values()) <= {profile.name for profile in NAMED}


def test_a_run_that_was_interrupted_is_continued(tmp_path: Path) -> None:
    progress = tmp_path / "progress.jsonl"
    arguments = ("run", "--first", "0", "--jobs", "1", "--output", "json", "--progress", str(progress))
    begun = json.loads(simulate(*arguments, "--seeds", "2").stdout)
    with progress.open("a") as file:
        file.write('{"seed": 2, "prof')
    whole = json.loads(simulate(*arguments, "--seeds", "3").stdout)
    assert whole["histories"] == 3
    assert begun["digests"].items() < whole["digests"].items()
    assert [json.loads(line)["seed"] for line in progress.read_text().splitlines()] == [0, 1, 2]


def test_a_seed_can_be_traced_event_by_event() -> None:
    ended = simulate("replay", "--seed", "1", "--trace")
    assert "b0           serves" in ended.stdout
    assert "hears add OK" in ended.stdout
