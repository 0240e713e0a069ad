"""Metadata service URIs: Apache's ``zk[+<layout>]://host1:port;host2:port/path``, Pulsar's ``metadata-store:zk:...``.

Pulsar's driver reads the path of its URI as a chroot: its ledgers root is always ``<path>/ledgers``, and its ledgers
have the hierarchical layout. Only ZooKeeper and the layouts known to this project are supported. Any other URI is
refused with an example of the right form, because people type URIs.

Source: docs/formats.md#metadata-service-uri.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bookie.model.errors import PermanentError
from bookie.model.hosts import is_host, is_port

DEFAULT_PORT: Final = 2181
DEFAULT_ROOT: Final = "/ledgers"
_EXAMPLE: Final = "zk://zk1:2181;zk2:2181/ledgers"
_PULSAR_EXAMPLE: Final = "metadata-store:zk:zk1:2181,zk2:2181"
_LAYOUTS: Final = frozenset({"hierarchical", "longhierarchical", "flat"})
_ANY_LAYOUT: Final = frozenset({"null", "none"})
_UNSUPPORTED_LAYOUTS: Final = {
    "ms": "the metastore layout keeps its ledgers outside the ZooKeeper tree",
    "legacyhierarchical": "Apache's own clients refuse it in a URI as well; leave the layout out",
}


PULSAR_DRIVER: Final = "metadata-store"
"""Scheme of a URI of Pulsar's metadata driver, which has no ``//``."""
_PULSAR_LAYOUT: Final = "hierarchical"
_UNSUPPORTED_STORE_MESSAGE: Final = "metadata in {} is not supported, only in ZooKeeper"
_UNSUPPORTED_STORES: Final = {"etcd": "etcd", "oxia": "Oxia", "rocksdb": "RocksDB", "memory": "memory"}
_BROKER_ADDRESS_HINT: Final = (
    "without // it is the address of a broker's metadata; a bookie's begins with metadata-store:"
)


class InvalidUriError(PermanentError):
    """An unusable metadata service URI; the text shows a usable one."""


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
        InvalidUriError: another scheme or store, an unknown layout, no host, a bad port, or no path.
    """
    driver, _, store = text.strip().partition(":")
    if driver.lower() == PULSAR_DRIVER:
        return _pulsar_uri(text, store)
    if (name := _UNSUPPORTED_STORES.get(driver.lower())) is not None:
        raise _refuse(text, _UNSUPPORTED_STORE_MESSAGE.format(name))
    scheme, separator, rest = text.strip().partition("://")
    if not separator and driver.lower() == "zk" and store:
        raise _refuse(text, _BROKER_ADDRESS_HINT, _PULSAR_EXAMPLE)
    if not separator:
        raise _refuse(text, "it has no scheme")
    layout = _layout(text, scheme.lower())
    authority, _, path = rest.partition("/")
    hosts = _hosts(text, authority)
    return MetadataUri(hosts, _root(text, path), layout)


def _pulsar_uri(text: str, store: str) -> MetadataUri:
    """``zk:<hosts>[/<chroot>]``, after the name of Pulsar's driver."""
    kind, _, address = store.partition(":")
    if kind.lower() in _UNSUPPORTED_STORES:
        raise _refuse(text, _UNSUPPORTED_STORE_MESSAGE.format(_UNSUPPORTED_STORES[kind.lower()]), _PULSAR_EXAMPLE)
    if kind.lower() != "zk" or address.startswith("//"):
        raise _refuse(text, "Pulsar's driver names ZooKeeper as zk:, followed by the hosts", _PULSAR_EXAMPLE)
    authority, _, path = address.partition("/")
    chroot = _root(text, path) if path.rstrip("/") else ""
    return MetadataUri(_hosts(text, authority), chroot + DEFAULT_ROOT, _PULSAR_LAYOUT)


def uri_problems(text: str) -> Iterator[str]:
    """Yield why ``text`` is not a metadata service URI, as sentences with the setting's name; nothing if it is one."""
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
    why = _UNSUPPORTED_LAYOUTS.get(layout, f"known layouts are {', '.join(sorted(_LAYOUTS))}")
    raise _refuse(text, f"the layout {layout!r} is not supported: {why}")


def _hosts(text: str, authority: str) -> str:
    return ",".join(_host(text, host.strip()) for host in authority.replace(";", ",").split(","))


def _host(text: str, host: str) -> str:
    name, port = _split_port(host)
    if not is_host(name) or any(character.isspace() or character in "@?#" for character in name):
        raise _refuse(text, f"{host!r} is not a host")
    if not is_port(port):
        raise _refuse(text, f"{port!r} is not a port")
    return f"{name}:{int(port)}"


def _split_port(host: str) -> tuple[str, str]:
    if host.startswith("["):  # an IPv6 literal contains colons
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


def _refuse(text: str, why: str, example: str = _EXAMPLE) -> InvalidUriError:
    return InvalidUriError(f"cannot use the metadata service URI {text!r}: {why} (example: {example})")
