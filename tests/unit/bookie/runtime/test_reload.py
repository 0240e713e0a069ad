"""The effect of a changed configuration on a running process: only the decisions."""

from __future__ import annotations

from pathlib import Path

from bookie.runtime.configuration.reload import ConfigSource, OptionChange, ReloadDecision, decide

START: dict[str, object] = {"rate": 1, "racks": 2, "port": 80}


def source(**given: str) -> ConfigSource:
    return ConfigSource(Path("bkheal.toml"), lambda text: START, START, given, frozenset({"rate"}))


def test_an_unchanged_file_changes_nothing() -> None:
    assert decide(source(), START, dict(START)) == ReloadDecision()


def test_a_live_option_is_applied_and_others_wait_for_a_restart() -> None:
    new = {"rate": 5, "racks": 3, "port": 80}
    assert decide(source(), START, new) == ReloadDecision(
        taken=(OptionChange("rate", 1, 5),), waiting=(OptionChange("racks", 2, 3),)
    )


def test_an_option_set_by_flag_or_variable_does_not_follow_the_file() -> None:
    decision = decide(source(rate="--rate", racks="BKHEAL_RACKS"), START, START | {"rate": 5, "racks": 3})
    assert decision == ReloadDecision(overridden=(OptionChange("racks", 2, 3), OptionChange("rate", 1, 5)))


def test_each_change_is_reported_once() -> None:
    seen = START | {"racks": 3}
    assert decide(source(), seen, seen | {"rate": 5}) == ReloadDecision(taken=(OptionChange("rate", 1, 5),))


def test_a_change_back_to_the_value_in_use_needs_no_restart() -> None:
    assert decide(source(), START | {"racks": 3}, START) == ReloadDecision()


def test_a_waiting_change_is_reported_against_the_value_in_use() -> None:
    assert decide(source(), START | {"racks": 3}, START | {"racks": 4}).waiting == (OptionChange("racks", 2, 4),)
