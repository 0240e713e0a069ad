"""Rules use only metrics, labels and values of labels, thresholds, and sections of the runbook that exist."""

from __future__ import annotations

import re

import pytest

from tests.chart.rule_files import (
    ROOT,
    RULE_FILES,
    RUNBOOK,
    TOKEN,
    alerts,
    filled_in,
    groups,
    problems_of,
    recorded,
    rules,
    thresholds,
)

TEXT = ROOT / "docs" / "operations.md"
SEVERITIES = {"critical", "warning", "info"}
SELECTED = 'cluster="eu1"'


def test_every_metric_label_and_value_exists() -> None:
    found = {rule.get("alert", rule.get("record")): problems_of(rule["expr"]) for rule in rules()}
    assert {name: problems for name, problems in found.items() if problems} == {}


def test_the_check_finds_wrong_metrics_labels_and_values() -> None:
    assert problems_of("sum(bkheal_no_such_thing)") == ["bkheal_no_such_thing is no metric"]
    assert problems_of('bkheal_bookies{colour="red"}') == ["bkheal_bookies has no label colour"]
    assert problems_of('bkheal_bookies{state=~"lost|found"}') == ["bkheal_bookies: state is never found"]
    assert problems_of("sum by (colour) (bkheal_bookies)") == ["nothing here has a label colour"]
    assert problems_of("cluster:bkheal_nothing:sum") == ["cluster:bkheal_nothing:sum is not recorded"]
    assert problems_of("bkheal_audit_duration_seconds") == ["bkheal_audit_duration_seconds is no metric"]


def test_every_alert_has_a_severity_and_a_description() -> None:
    assert len(alerts()) >= 20
    for name, alert in alerts().items():
        assert re.fullmatch(r"Bkheal([A-Z][a-z]+)+", name)
        assert alert["labels"].keys() == {"severity"}
        assert alert["labels"]["severity"] in SEVERITIES
        assert alert["annotations"].keys() - {"report_url"} == {"summary", "description", "runbook_url"}
        assert not alert["annotations"]["summary"].endswith(".")
        assert alert["annotations"]["description"].endswith(".")


def test_alerts_and_sections_of_the_runbook_correspond() -> None:
    sections = dict.fromkeys(re.findall(r"^### (Bkheal\w+)$", TEXT.read_text(), re.M))
    assert list(sections) == list(alerts())
    for name, alert in alerts().items():
        assert alert["annotations"]["runbook_url"] == f"{RUNBOOK}#{name.lower()}"


def test_the_table_of_modes_has_every_alert_once() -> None:
    section = TEXT.read_text().split("### Which alert has data\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (Bkheal[^|]+) \|[^|]+\|[^|]+\|[^|]+\|$", section, re.M)
    assert sorted(", ".join(rows).split(", ")) == sorted(alerts())


def test_every_section_explains_the_alert_and_what_to_do() -> None:
    _, *sections = re.split(r"^### (?=Bkheal)", TEXT.read_text(), flags=re.M)
    for section in sections:
        name, _, text = section.partition("\n")
        severity = alerts()[name]["labels"]["severity"]
        missing = [part for part in ("Means", "Causes", "Check", "Do", "Escalate") if f"**{part}.**" not in text]
        assert missing == [], name
        assert f"*{severity}*" in text, name


def test_commands_of_the_runbook_exist() -> None:
    from typer.main import get_command

    from auditor.cli.main import app

    root = get_command(app)
    commands = {name: getattr(command, "commands", {}) for name, command in root.commands.items()}  # type: ignore[attr-defined]
    texts = [TEXT.read_text(), *(alert["annotations"]["description"] for alert in alerts().values())]
    found = [words.split() for text in texts for words in re.findall(r"`bkheal ([a-z][^`]*)`", text)]
    assert len(found) > 30
    for words in found:
        assert words[0] in commands, words
        assert not commands[words[0]] or words[1].startswith("--") or words[1] in commands[words[0]], words


def test_thresholds_are_exactly_those_used_by_the_rules() -> None:
    used = {name for path in RULE_FILES for name in TOKEN.findall(path.read_text())}
    assert used - {"selector", "scope", "own", "public_url", "cron_kinds"} == thresholds().keys()


def test_recorded_names_have_level_metric_and_operation_and_are_unique() -> None:
    names = [rule["record"] for rule in rules() if "record" in rule]
    assert len(set(names)) == len(names) == len(recorded())
    assert [
        name for name in names if not re.fullmatch(r"(cluster|instance)(_[a-z]+)?:bkheal_[a-z_]+:[a-z0-9_]+", name)
    ] == []


def test_groups_have_names_of_their_own() -> None:
    names = [group["name"] for group in groups()]
    assert len(set(names)) == len(names)
    assert all(name.startswith("bkheal-") for name in names)


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.stem)
def test_the_selector_is_applied_to_every_metric(path: object) -> None:
    assert path in RULE_FILES
    text = "\n".join(rule["expr"] for rule in _parsed(path))
    plain = re.sub(r"\w+:bkheal_\w+:\w+", "", text)
    uses = re.findall(r"\b(?:bkheal_\w+|up)\{([^}]*)\}|\b(bkheal_\w+)(?!\{)\b", plain)
    assert uses
    assert [use for use in uses if SELECTED not in use[0]] == []


def _parsed(path: object) -> list[dict[str, str]]:
    import yaml

    text = filled_in(path.read_text(), selector=SELECTED)  # type: ignore[attr-defined]
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
