"""The options of commands that create ledgers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from bookie.model.metadata import DigestType
from bookie.runtime.configuration.settings import ConfigurationError


def new_ledger(uri: str, given: Mapping[str, Any]) -> None:
    """Check the options of a command that creates ledgers; there is no settings object for these commands.

    Raises:
        ConfigurationError: contains every problem.
    """
    problems = []
    for check in (
        lambda: check_quorums(given["ensemble_size"], given["write_quorum"], given["ack_quorum"]),
        lambda: digest_type_from_name(given["digest"]),
    ):
        try:
            check()
        except typer.BadParameter as error:
            problems.append(error.message)
    if problems:
        raise ConfigurationError(problems)


def digest_type_from_name(name: str) -> DigestType:
    """Return the digest type of this name, in upper or lower case.

    Raises:
        typer.BadParameter: there is no such type.
    """
    if name.upper() not in DigestType.__members__:
        raise typer.BadParameter(f"{name!r} is not a digest type; use one of {', '.join(DigestType.__members__)}")
    return DigestType[name.upper()]


def check_quorums(ensemble_size: int, write_quorum: int, ack_quorum: int) -> tuple[int, int, int]:
    """Return the three numbers as one value.

    Raises:
        typer.BadParameter: no ledger can have these numbers.
    """
    if not ensemble_size >= write_quorum >= ack_quorum:
        shape = f"{ensemble_size}/{write_quorum}/{ack_quorum}"
        raise typer.BadParameter(f"{shape} cannot be: need ensemble size >= write quorum >= ack quorum (-e, -w, -a)")
    return ensemble_size, write_quorum, ack_quorum
