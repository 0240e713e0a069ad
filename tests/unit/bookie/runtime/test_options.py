"""Options from the annotations of a settings class: names, defaults, values, and all problems reported together."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from bookie.model.errors import PermanentError
from bookie.model.option import Group, Option
from bookie.runtime.configuration.options import (
    REQUIRED,
    add_options,
    build,
    live_options,
    options_of,
    range_problems,
    values_in,
)
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.wire.security import SaslMechanism


@dataclass(frozen=True, slots=True)
class Address:
    port: Annotated[int, Option("Port.", minimum=0, maximum=65535)]
    host: Annotated[str, Option("Host.")] = "localhost"


@dataclass(frozen=True, slots=True)
class Pair:
    first: Annotated[int, Option("One.")] = 1
    second: Annotated[int, Option("Another.")] = 2

    def __post_init__(self) -> None:
        if self.first == self.second:
            raise PermanentError(f"both are {self.first}")


@dataclass(frozen=True, slots=True)
class Settings:
    root: str
    share: Annotated[float, Option("A share.", above=0, maximum=1)]
    wait_s: Annotated[float, Option("Seconds.", "wait", minimum=0, is_live=True)] = 2.5
    is_quick: Annotated[bool, Option("Quick.", "quick")] = False
    file: Annotated[Path | None, Option("A file.", is_file=True)] = None
    mechanism: Annotated[SaslMechanism, Option("How.")] = SaslMechanism.DIGEST_MD5
    pair: Annotated[Pair, Group("pair_", help={"second": "The second of this pair."})] = Pair()
    address: Annotated[Address | None, Group("at_")] = None
    internal: int = 7

    def __post_init__(self) -> None:
        if problems := list(range_problems(self)):
            raise ConfigurationError(problems)


def problems(**values: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as refused:
        build(Settings, {"share": 0.5} | values, root="/")
    return refused.value.problems


def test_options_have_the_names_and_defaults_of_their_fields() -> None:
    found = {option.name: option.default for option in options_of(Settings)}
    assert found == {
        "share": REQUIRED,
        "wait": 2.5,
        "quick": False,
        "file": None,
        "mechanism": SaslMechanism.DIGEST_MD5,
        "pair_first": 1,
        "pair_second": 2,
        "at_port": None,
        "at_host": "localhost",
    }
    assert live_options(Settings) == {"wait"}
    assert [option.help for option in options_of(Settings) if option.name.startswith("pair")] == [
        "One.",
        "The second of this pair.",
    ]


def test_the_annotations_of_a_class_are_read_once() -> None:
    assert options_of(Settings) is options_of(Settings)


def test_settings_are_built_from_values(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    values = {"share": 1, "file": file, "quick": True, "pair_second": 5, "at_port": 80, "mechanism": "PLAIN"}
    made = build(Settings, values, root="/", internal=8)
    assert (made.root, made.share, made.file, made.is_quick, made.internal) == ("/", 1.0, file, True, 8)
    assert (made.pair, made.address, made.mechanism) == (Pair(1, 5), Address(80), SaslMechanism.PLAIN)


def test_without_values_the_defaults_apply() -> None:
    empty = {"file": Path(), "wait": None, "at_port": None, "at_host": "localhost"}
    assert build(Settings, {"share": 0.5} | empty, root="/") == Settings("/", 0.5)


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    found = problems(share=0.0, wait=-1.0, file=absent, pair_first=2, at_port=70_000)
    assert len(found) == 5
    for part in ("share = 0.0", "wait = -1.0", str(absent), "both are 2", "at_port = 70000"):
        assert any(part in problem for problem in found), part


@dataclass(frozen=True, slots=True)
class Share:
    share: Annotated[float, Option("A share.", maximum=1)] = 1.0

    def __post_init__(self) -> None:
        if problems := list(range_problems(self)):
            raise ConfigurationError(problems)


@dataclass(frozen=True, slots=True)
class Shares:
    mine: Annotated[Share, Group("my_")] = Share()


def test_the_problems_of_a_group_are_those_of_its_settings() -> None:
    with pytest.raises(ConfigurationError) as caught:
        build(Shares, {"my_share": 2.0})
    (problem,) = caught.value.problems
    assert problem.startswith("share")


def test_a_file_that_cannot_be_checked_is_reported_and_not_called_absent() -> None:
    found = problems(wait=-1.0, file=Path("/" + "n" * 300))
    assert len(found) == 2
    assert any(problem.startswith("file: cannot look for /nnn") and "too long" in problem for problem in found)


def test_an_option_of_a_group_that_is_off_is_refused() -> None:
    assert problems(at_host="elsewhere") == ("at_host needs at_port",)


def test_argparse_gives_the_same_values() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, Settings)
    given = values_in(
        parser.parse_args(["--share", "0.1", "--quick", "--at-port", "0", "--mechanism", "PLAIN"]), Settings
    )
    made = build(Settings, given, root="/")
    assert made == Settings("/", 0.1, is_quick=True, mechanism=SaslMechanism.PLAIN, address=Address(0))
