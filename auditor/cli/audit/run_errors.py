"""Ends a command after an error of its run in this process: one sentence on standard error, and an exit code."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import typer

from auditor.cli.output import print_error
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def exit_after_error() -> Iterator[None]:
    """Exit after an error of the body with the exit code in the record of the run. Unexpected errors are logged.

    Raises:
        ModuleNotFoundError: an extra of this package is not installed.
    """
    from spark_jobs.one_shot.run import exit_code_of

    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BkhealError as error:
        print_error(str(error))
        raise typer.Exit(exit_code_of(error)) from None
    except ModuleNotFoundError:
        raise
    except Exception as error:  # noqa: BLE001  # the boundary of a command; the log has the traceback
        _log.exception("the run failed")
        print_error(f"{type(error).__name__}: {error}")
        raise typer.Exit(ExitCode.INTERNAL) from None
