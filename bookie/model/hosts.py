"""Host names and ports in addresses. A name that cannot be looked up is refused before any connection."""

from __future__ import annotations

from collections.abc import Iterator


def is_host(name: str) -> bool:
    """Whether ``name`` may be a host name or an address; the name need not exist.

    A name with an empty label or one of more than 63 characters cannot be looked up: the attempt raises no ``OSError``
    but a ``UnicodeError``.
    """
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return bool(name) and name.isprintable()


def is_port(text: str) -> bool:
    """Whether ``text`` is the number of a port, 1 to 65535."""
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= 65535


def host_problems(setting: str, host: str | None) -> Iterator[str]:
    """Yield a sentence if the value of ``setting`` is not a host. None and an empty text are allowed."""
    if host and not is_host(host):
        yield f"{setting} = {host!r} is not a host name or address"
