"""``bkheal audit prepare``: an archive of Spark's Java classes, for a faster start of audits on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from auditor.cli.output import OutputFormat, print_json, print_line, print_note
from auditor.cli.running import OutputOption, run

HELP: Final = (
    "Make audits on this machine start faster.\n\n"
    "Keeps the Java classes that Spark loads in one file (application class-data sharing), so a new process maps them "
    "instead of loading and checking each. An audit of a small cluster takes two thirds of the time then.\n\n"
    "The file has about 200 MB. It belongs to one release of Java and one installation of Spark: run the command again "
    "after either changes. Java ignores a file that does not fit. Delete the file to do without it. What a killed "
    "preparation left beside it is removed.\n\n"
    "The image of bkheal has such a file. The command starts a ZooKeeper and Spark on this machine for about half a "
    "minute, and contacts no cluster."
)
EPILOG: Final = (
    "Exit codes: 0 done; 1 this Java cannot make such a file, the file cannot be written, or the audit "
    "that loads the classes failed; 2 wrong usage."
)

FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file",
        help="Where to keep it. Default: $BKHEAL_SPARK_CLASSES, then a file in ~/.cache/bkheal. Audits use the same "
        "default.",
    ),
]


def prepare(file: FileOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """The command; its help is ``HELP``."""
    from auditor.class_archive import ClassArchiveError, make_class_archive
    from bookie.runtime.java import find_java
    from spark_jobs.class_archive import VARIABLE, archive_path

    java = find_java()
    used = archive_path(java, os.environ)
    path = used if file is None else file.absolute()
    try:
        make_class_archive(path, java, run, lambda: print_note("another process makes this file; waiting for its end"))
    except OSError as error:
        raise ClassArchiveError(f"the archive cannot be written to {path}: {error.strerror or error}") from error
    size = path.stat().st_size
    if output is OutputFormat.JSON:
        print_json("ClassArchive", path=str(path), bytes=size, java=str(java.home))
    else:
        print_line(f"{path}: {size / 1e6:.0f} MB, for Java {java.version} at {java.home}")
    if path != used:
        print_note(f"audits look for {used}; set {VARIABLE}={path} where they run")
