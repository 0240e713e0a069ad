"""Metadata service URIs, as Apache writes them: ``zk[+<layout>]://host1:port;host2:port/path``.

Only ZooKeeper is spoken here, and only the layouts that this project reads. Everything else is refused with a text that
contains the right form, because people type URIs.

Source: docs/formats.md#metadata-service-uri.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bookie.model.errors import PermanentError

DEFAULT_PORT: Final = 2181
DEFAULT_ROOT: Final = "/ledgers"
_EXAMPLE: Final = "zk://zk1:2181;zk2:2181/ledgers"
_LAYOUTS: Final = frozenset({"hierarchical", "longhierarchical", "flat"})
_ANY_LAYOUT: Final = frozenset({"null", "none"})
_OTHER_LAYOUTS: Final = {
    "ms": "the metastore layout keeps its ledgers outside the ZooKeeper tree",
    "legacyhierarchical": "Apache's own clients refuse it in a URI as well; leave the layout out",
}


_OTHER_DRIVERS: Final = {
    "etcd": "metadata in etcd is not supported, only in ZooKeeper",
    "metadata-store": "Pulsar's metadata-store driver is not supported. If it keeps its data in ZooKeeper, name that "
    "with its layout: metadata-store:zk:zk1:2181,zk2:2181 is zk+hierarchical://zk1:2181;zk2:2181/ledgers",
}


class InvalidUriError(PermanentError):
    """A metadata service URI that cannot be used; the text shows one that can."""


@dataclass(frozen=True, slots=True)
class MetadataUri:
    """The address of a cluster's metadata."""

    hosts: str
    """ZooKeeper connect string, ``host:port`` joined with commas, every port explicit."""
    ledgers_root: str
    """Path of the ledgers root; a path, not a chroot."""
    layout: str | None
    """Required layout of the cluster; None to accept its LAYOUT node."""


def parse_uri(text: str) -> MetadataUri:
    """Read a metadata service URI. Hosts may be separated by ``;`` or ``,``; the default port is 2181.

    Raises:
        InvalidUriError: another scheme, an unknown layout, no host, a bad port, or no path.
    """
    if (why := _OTHER_DRIVERS.get(text.strip().partition(":")[0].lower())) is not None:
        raise _refuse(text, why)
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        raise _refuse(text, "it has no scheme")
    layout = _layout(text, scheme.lower())
    authority, _, path = rest.partition("/")
    hosts = ",".join(_host(text, host.strip()) for host in authority.replace(";", ",").split(","))
    return MetadataUri(hosts, _root(text, path), layout)


def uri_problems(text: str) -> Iterator[str]:
    """Report why ``text`` is no metadata service URI, in a sentence that names the setting; nothing if it is one."""
    try:
        parse_uri(text)
    except InvalidUriError as error:
        yield f"metadata_uri: {error}"


def _layout(text: str, scheme: str) -> str | None:
    driver, *layouts = scheme.split("+")
    if driver != "zk":
        raise _refuse(text, f"the scheme {driver!r} is not supported, only 'zk' is")
    if len(layouts) > 1:
        raise _refuse(text, f"it names {len(layouts)} layouts")
    layout = layouts[0] if layouts else "null"
    if layout in _LAYOUTS:
        return layout
    if layout in _ANY_LAYOUT:
        return None
    why = _OTHER_LAYOUTS.get(layout, f"known layouts are {', '.join(sorted(_LAYOUTS))}")
    raise _refuse(text, f"the layout {layout!r} is not supported: {why}")


def _host(text: str, host: str) -> str:
    name, port = _split_port(host)
    if not name or any(character.isspace() or character in "@?#" for character in name):
        raise _refuse(text, f"{host!r} is not a host")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= 65535):
        raise _refuse(text, f"{port!r} is not a port")
    return f"{name}:{int(port)}"


def _split_port(host: str) -> tuple[str, str]:
    if host.startswith("["):  # an IPv6 literal holds colons of its own
        name, bracket, port = host.partition("]")
        if not bracket or (port and not port.startswith(":")):
            return "", ""
        return name + bracket, port[1:] if port else str(DEFAULT_PORT)
    name, colon, port = host.partition(":")
    return name, port if colon else str(DEFAULT_PORT)


def _root(text: str, path: str) -> str:
    parts = path.rstrip("/").split("/")
    if parts == [""]:
        raise _refuse(text, f"it has no path; the usual one is {DEFAULT_ROOT}")
    if any(part in ("", ".", "..") for part in parts) or "?" in path or "#" in path:
        raise _refuse(text, f"'/{path}' is not a path of plain names")
    return "/" + "/".join(parts)


def _refuse(text: str, why: str) -> InvalidUriError:
    return InvalidUriError(f"cannot use the metadata service URI {text!r}: {why} (example: {_EXAMPLE})")
