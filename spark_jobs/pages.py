"""Templates of HTML pages: every value is escaped, and an unknown name in a template is an error."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from importlib.resources.abc import Traversable

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from bookie.runtime.human import counted


def page_environment(folder: Traversable, clean: Callable[[str], str] = str) -> Environment:
    """Return the environment of the templates in a folder.

    Args:
        folder: contains the templates. If the package is imported from an archive (``--py-files``), it is in the
            archive.
        clean: is called with each text that a template prints; its result is then escaped.
    """

    def printed(value: object) -> object:
        if value is None:
            raise TypeError("a template printed an empty value")
        return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    def text_of(name: str) -> str | None:
        file = folder.joinpath(name)
        return file.read_text(encoding="utf-8") if file.is_file() else None

    return Environment(
        loader=FunctionLoader(text_of),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=printed,
    )


def marked_text(ledgers: int, in_progress: int, parked: Mapping[str, int]) -> str:
    """Return how many ledgers are marked for repair, and what becomes of them; empty if none is marked.

    Args:
        ledgers: all marked ledgers.
        in_progress: those that are being repaired now.
        parked: numbers of parked ledgers by reason.
    """
    if not ledgers:
        return ""
    waiting = max(0, ledgers - in_progress - sum(parked.values()))
    parts = [f"{waiting} waiting", f"{in_progress} in progress"]
    parts += [f"{count} parked ({reason.replace('_', ' ')})" for reason, count in sorted(parked.items())]
    return f"{counted(ledgers, 'ledger', ',')}: {', '.join(parts)}"


def style_hash(css: str) -> str:
    """Return the hash that identifies a style sheet in a content security policy, which then allows only this text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()}"
