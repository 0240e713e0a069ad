"""Cookies: which directories and which cluster a bookie id belongs to, byte for byte Apache's.

ZooKeeper and the ``VERSION`` files contain the same bytes. Layouts 3 and later are read, 5 is written.

Source: docs/formats.md#cookies.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from bookie.metadata.bookies.incarnations import Incarnations
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.bookies.service_info import PROTOCOL_APACHE, PROTOCOL_GRPC
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import cookie_path
from bookie.metadata.nodes import create_with_parents, reread
from bookie.metadata.port import BadVersionError, MetadataStore, NodeExistsError, NoNodeError, WriteOutcomeUnknownError
from bookie.metadata.proto.metadata_formats_pb2 import CookieFormat
from bookie.metadata.proto.text import UnreadableTextError, parse_text, quoted
from bookie.model.errors import ConflictError, PermanentError
from bookie.model.ids import BookieId, InvalidIdError, bookie_id
from bookie.runtime.human import counted

COOKIE_LAYOUT: Final = 5
_PLAIN_LAYOUT: Final = 3
"""Three plain lines; later layouts are protobuf text."""


class InvalidCookieError(PermanentError):
    """The bytes are not a cookie, or are a cookie of an unsupported layout."""


class CookieExistsError(ConflictError):
    """The bookie id has a cookie already."""


class CookieConflictError(ConflictError):
    """The cookie was deleted, or its version is not the expected one."""


class ForeignClusterError(PermanentError):
    """The cluster has Apache bookies. Their clients would also choose bkheal's bookies, but cannot speak to them."""


@dataclass(frozen=True, slots=True)
class Cookie:
    """Identity of a bookie's storage. Equal cookies may have been written in different layouts."""

    bookie_id: BookieId
    journal_dirs: tuple[str, ...]
    ledger_dirs: tuple[str, ...]
    instance_id: str | None = None
    index_dirs: tuple[str, ...] | None = None
    """None if no index directories are configured: the ledger directories are used."""
    layout: int = field(default=COOKIE_LAYOUT, compare=False)


@dataclass(frozen=True, slots=True)
class StoredCookie:
    """A cookie with the version of its node."""

    cookie: Cookie
    version: int


def encode_cookie(cookie: Cookie) -> bytes:
    """Bytes of a cookie, always in the current layout."""
    lines = [
        str(COOKIE_LAYOUT),
        f"bookieHost: {quoted(cookie.bookie_id)}",
        f"journalDir: {quoted(','.join(cookie.journal_dirs))}",
        f"ledgerDirs: {quoted(_join(cookie.ledger_dirs))}",
    ]
    if cookie.instance_id:
        lines.append(f"instanceId: {quoted(cookie.instance_id)}")
    if cookie.index_dirs is not None:
        lines.append(f"indexDirs: {quoted(_join(cookie.index_dirs))}")
    return ("\n".join(lines) + "\n").encode()


def decode_cookie(data: bytes) -> Cookie:
    """Read a cookie.

    Raises:
        InvalidCookieError: not a cookie of layout 3 or later.
    """
    first, _, rest = data.partition(b"\n")
    if not first.strip().isdigit() or len(first) > 9 or int(first) < _PLAIN_LAYOUT:
        raise InvalidCookieError(f"a cookie begins with its layout, 3 or later, not with {first[:40]!r}")
    try:
        return _decode_plain(rest) if int(first) == _PLAIN_LAYOUT else _decode_text(rest, int(first))
    except (UnreadableTextError, InvalidIdError, ValueError) as error:
        raise InvalidCookieError(f"cookie of layout {int(first)}: {error}") from error


class CookieStore:
    """The cookies of one cluster."""

    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._root = cluster.root

    async def read(self, bookie: BookieId) -> StoredCookie | None:
        """Return a bookie's cookie, or None if it never joined.

        Raises:
            InvalidCookieError: it is damaged.
            StoreUnavailableError: no answer.
        """
        try:
            node = await self._store.get(cookie_path(self._root, bookie))
        except NoNodeError:
            return None
        return StoredCookie(decode_cookie(node.data), node.stat.version)

    async def version(self, bookie: BookieId) -> int | None:
        """Return the version of a bookie's cookie, even of a damaged one, or None if it has none.

        Raises:
            StoreUnavailableError: no answer.
        """
        stat = await self._store.stat(cookie_path(self._root, bookie))
        return None if stat is None else stat.version

    async def create(self, cookie: Cookie) -> None:
        """Store the cookie of a bookie that has none.

        Raises:
            CookieExistsError: it has one.
            WriteOutcomeUnknownError: the answer was lost and it cannot be read.
            StoreUnavailableError: no answer; nothing was changed.
        """
        path, data = cookie_path(self._root, cookie.bookie_id), encode_cookie(cookie)
        try:
            await create_with_parents(self._store, path, data, self._root)
        except NodeExistsError as error:
            raise CookieExistsError(f"bookie {cookie.bookie_id} has a cookie already") from error
        except WriteOutcomeUnknownError:
            node = await reread(self._store, path)
            if node is None:
                raise
            if node.data != data:
                raise CookieExistsError(f"bookie {cookie.bookie_id} has a cookie already") from None

    async def replace(self, cookie: Cookie, version: int) -> None:
        """Replace a cookie if its version is still ``version``.

        Raises:
            CookieConflictError: it is not.
            StoreUnavailableError, WriteOutcomeUnknownError: see ``MetadataStore.set``.
        """
        try:
            await self._store.set(cookie_path(self._root, cookie.bookie_id), encode_cookie(cookie), version)
        except (BadVersionError, NoNodeError) as error:
            raise CookieConflictError(f"the cookie of {cookie.bookie_id} is not at version {version}") from error

    async def delete(self, bookie: BookieId, version: int) -> None:
        """Delete a cookie if its version is still ``version``: the bookie is then unknown. Idempotent.

        Raises:
            CookieConflictError: it has another version.
            StoreUnavailableError, WriteOutcomeUnknownError: see ``MetadataStore.delete``.
        """
        try:
            await self._store.delete(cookie_path(self._root, bookie), version)
        except NoNodeError:
            return
        except BadVersionError as error:
            raise CookieConflictError(f"the cookie of {bookie} is not at version {version}") from error


async def check_no_apache_bookies(store: MetadataStore, cluster: Cluster) -> frozenset[BookieId]:
    """Refuse a cluster with Apache bookies (docs/failure-model.md#state-under-bkheal).

    Call it before a bookie without Apache's protocol joins.

    A bookie is foreign if it has a cookie and no history of incarnations, or if its registration offers Apache's
    protocol without bkheal's (an empty one does).

    Returns:
        Registered bkheal bookies with an Apache port: Apache's clients use this cluster.

    Raises:
        ForeignClusterError: there are foreign bookies; names some.
        StoreUnavailableError: no answer.
    """
    registrations = Registrations(store, cluster)
    foreign = set(await registrations.known() - await Incarnations(store, cluster.root).known())
    with_both_protocols: set[BookieId] = set()
    for bookie in (await registrations.list()).registered - foreign:
        info = await registrations.service_info(bookie)
        if info is not None and info.endpoint(PROTOCOL_APACHE):
            (with_both_protocols if info.endpoint(PROTOCOL_GRPC) else foreign).add(bookie)
    if foreign:
        bookies = counted(len(foreign), "bookie")
        raise ForeignClusterError(
            f"the cluster at {cluster.root} has {bookies} of Apache BookKeeper ({some(foreign)}); its "
            "clients would also choose this bookie and could not connect to it: start it with --apache-port, or use "
            "another ledgers root"
        )
    return frozenset(with_both_protocols)


def some(bookies: Collection[BookieId]) -> str:
    """Return the names of a few bookies, for a message."""
    return ", ".join(sorted(bookies)[:5]) + (", ..." if len(bookies) > 5 else "")


def _decode_text(data: bytes, layout: int) -> Cookie:
    message = CookieFormat()
    parse_text(data, message)
    return Cookie(
        bookie_id(message.bookieHost),
        tuple(message.journalDir.split(",")),
        _split(message.ledgerDirs),
        message.instanceId or None,
        _split(message.indexDirs) if message.indexDirs.strip() else None,
        layout,
    )


def _decode_plain(data: bytes) -> Cookie:
    name, journal_dir, ledger_dirs, *_ = data.decode().split("\n")
    return Cookie(bookie_id(name), (journal_dir,), _split(ledger_dirs), layout=_PLAIN_LAYOUT)


def _join(directories: tuple[str, ...]) -> str:
    return "\t".join([str(len(directories)), *directories])


def _split(text: str) -> tuple[str, ...]:
    count, *directories = text.split("\t")
    if count != str(len(directories)):
        raise ValueError(f"{count!r} directories announced, {len(directories)} listed")
    return tuple(directories)
