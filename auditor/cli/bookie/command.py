"""All commands below ``bkheal bookie``, in the order of its help."""

from __future__ import annotations

from auditor.cli.bookie import contents, cookie, formatting, remedies, scrub, upkeep
from auditor.cli.bookie.place import CHANGE_EXIT_CODES_HELP, EXIT_CODES
from auditor.cli.services.processes import bookie_app

__all__ = ["bookie_app"]

bookie_app.command("status", epilog=EXIT_CODES)(contents.status)
bookie_app.command("ledgers", epilog=EXIT_CODES)(contents.ledgers)
bookie_app.command("entries", epilog=EXIT_CODES)(contents.entries)
bookie_app.command("read", epilog=EXIT_CODES)(contents.read)
bookie_app.command("scrub")(scrub.scrub)
bookie_app.command("rebuild-index")(remedies.rebuild_index)
bookie_app.command("salvage-journal")(remedies.salvage_journal)
bookie_app.command("gc")(upkeep.collect)
bookie_app.command("readonly", epilog=CHANGE_EXIT_CODES_HELP)(upkeep.readonly)
bookie_app.command("force")(upkeep.force)
bookie_app.command("format")(formatting.format_directories)
bookie_app.add_typer(cookie.app, name="cookie")
