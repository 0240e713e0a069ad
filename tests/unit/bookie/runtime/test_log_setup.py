from __future__ import annotations

import io
import json
import logging

import pytest

from bookie.runtime.logs import setup_logging

log = logging.getLogger("bookie.some_module")


def set_up(level: int | str = "INFO", is_json: bool | None = False, **environment: str) -> io.StringIO:
    stream = io.StringIO()
    setup_logging(level, is_json, stream=stream, environment=environment)
    return stream


def test_plain_text_is_time_level_event_and_fields() -> None:
    stream = set_up()
    log.info("ledger repaired", extra={"ledger_id": 7, "bookie_id": "bk1:3181"})
    time, _, rest = stream.getvalue().partition(" ")
    assert time.endswith("Z")
    assert rest == "INFO ledger repaired ledger_id=7 bookie_id=bk1:3181\n"


@pytest.mark.parametrize(
    ("value", "shown"),
    [("two words", '"two words"'), ("", '""'), ("a=b", '"a=b"'), ('say "x"', '"say \\"x\\""'), ("a\nb", '"a\\nb"')],
)
def test_plain_values_that_could_be_misread_are_quoted(value: str, shown: str) -> None:
    stream = set_up()
    log.info("event", extra={"value": value})
    assert stream.getvalue().endswith(f" event value={shown}\n")


def test_an_event_with_a_line_break_stays_one_line() -> None:
    stream = set_up()
    log.info("first\n2026-01-01 INFO forged")
    assert stream.getvalue().count("\n") == 1


def test_a_traceback_follows_the_line_of_its_event() -> None:
    stream = set_up()
    try:
        raise ValueError("no disk")
    except ValueError:
        log.exception("write failed", extra={"path": "/data"})
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("ERROR write failed path=/data")
    assert lines[-1] == "ValueError: no disk"


def test_json_has_one_object_per_line_with_the_same_names() -> None:
    stream = set_up(is_json=True)
    log.warning("ledger %s parked", 7, extra={"ledger_id": 7, "members": frozenset({"a"}), "time": "not this one"})
    try:
        raise ValueError("no\ndisk")
    except ValueError:
        log.exception("write failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "WARNING",
        "logger": "bookie.some_module",
        "event": "ledger 7 parked",
        "ledger_id": 7,
        "members": "frozenset({'a'})",
    }
    assert second["exception"].endswith("ValueError: no\ndisk")


@pytest.mark.parametrize(("variable", "is_json"), [("json", True), ("JSON", True), ("text", False), ("", False)])
def test_the_environment_chooses_the_format_if_the_caller_does_not(variable: str, is_json: bool) -> None:
    stream = set_up(is_json=None, LOG_FORMAT=variable)
    log.info("event")
    assert stream.getvalue().startswith("{") is is_json


def test_the_callers_choice_beats_the_environment() -> None:
    stream = set_up(is_json=False, LOG_FORMAT="json")
    log.info("event")
    assert not stream.getvalue().startswith("{")


def test_events_below_the_level_are_left_out() -> None:
    stream = set_up("warning")
    log.info("left out")
    log.warning("shown")
    assert "left out" not in stream.getvalue()
    assert "shown" in stream.getvalue()


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="NOISY"):
        set_up("noisy")


def test_kazoo_never_prints_what_it_sends_or_receives() -> None:
    stream = set_up("DEBUG")
    logging.getLogger("kazoo.client").debug("Sending request: Create(path='/ledgers', data=b'password')")
    logging.getLogger("kazoo.client").warning("Connection dropped")
    assert "password" not in stream.getvalue()
    assert "Connection dropped" in stream.getvalue()


def test_kazoo_logs_at_no_lower_level_than_the_rest() -> None:
    stream = set_up("ERROR")
    logging.getLogger("kazoo.client").warning("Connection dropped")
    assert stream.getvalue() == ""


def test_a_second_setup_replaces_the_first_and_keeps_foreign_handlers() -> None:
    foreign = logging.NullHandler()
    logging.getLogger().addHandler(foreign)
    first, second = set_up(), set_up()
    log.info("event")
    assert first.getvalue() == ""
    assert second.getvalue().count("event") == 1
    assert foreign in logging.getLogger().handlers
