"""LedgerMetadataFormat to and from the model (docs/formats.md#ledger-metadata, #field-rules, #metadata-rules).

Every scan reads up to 10^7 ledgers this way. So each field of the message is read once, and ensembles, of which a
cluster has few, are validated once and cached.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.unknown_fields import UnknownFieldSet

from bookie.metadata.proto.metadata_formats_pb2 import LedgerMetadataFormat
from bookie.model.errors import PermanentError
from bookie.model.ids import BookieId, EntryId, InvalidIdError, bookie_id
from bookie.model.metadata import DigestType, Fragment, InvalidMetadataError, LedgerMetadata, LedgerState

_CACHED_ENSEMBLES_MAX: Final = 100_000
"""About 30 MB. A cluster of 100 bookies with random ensembles has more; the cache is then cleared."""
_DIGEST_TYPE_FIELD: Final = 7
_STATES: Final = {state.value: state for state in LedgerState}
_DIGESTS: Final = {digest.value: digest for digest in DigestType}

_first_fragments: dict[tuple[str, ...], Fragment] = {}
"""For each ensemble its fragment at entry 0, the only fragment of most ledgers. Immutable, so sharing is safe."""


class UnreadableMetadataError(PermanentError):
    """The bytes are not ledger metadata of a supported format. A scan reports the error and continues."""


class UnwritableMetadataError(PermanentError):
    """The metadata cannot be expressed in its own format version."""


def from_message(message: LedgerMetadataFormat, version: int) -> LedgerMetadata:
    """Return the model of a parsed message.

    Raises:
        UnreadableMetadataError: a required field is missing or unknown, or a rule of docs/formats.md#metadata-rules is
        broken.
    """
    if not message.IsInitialized():  # for example if the state is a number unknown to this version
        raise UnreadableMetadataError("ledger metadata lacks a required field, or has an unknown state")
    state = _STATES[message.state]
    last_entry_id = length = None
    if state is LedgerState.CLOSED:
        if not message.HasField("lastEntryId"):
            raise UnreadableMetadataError("closed ledger metadata without a last entry")
        last_entry_id, length = EntryId(message.lastEntryId), message.length
    has_password = message.HasField("password")
    try:
        return LedgerMetadata(
            message.ensembleSize,
            message.quorumSize,
            message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
            _fragments(message),
            state,
            last_entry_id,
            length,
            _digest(message) if has_password else None,
            message.password if has_password else None,
            message.ctime if message.HasField("ctime") else None,
            _custom(message) if message.customMetadata else (),
            message.cToken if message.HasField("cToken") else None,
            version,
        )
    except InvalidMetadataError as error:
        raise UnreadableMetadataError(str(error)) from error


def to_message(metadata: LedgerMetadata, *, has_ctoken: bool) -> LedgerMetadataFormat:
    """Return the message of ``metadata``, with every field Apache writes.

    Raises:
        UnwritableMetadataError: it comes from format 1, without a password and digest type
        (docs/formats.md#field-rules).
    """
    if metadata.digest_type is None or metadata.password is None:
        raise UnwritableMetadataError("ledger metadata without a password can be written in format 1 only")
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length or 0,
        lastEntryId=-1 if metadata.last_entry_id is None else metadata.last_entry_id,
        state=LedgerMetadataFormat.State.Name(metadata.state.value),
        digestType=LedgerMetadataFormat.DigestType.Name(metadata.digest_type.value),
        password=metadata.password,
        ackQuorumSize=metadata.ack_quorum,
        ctime=metadata.ctime_ms,
        cToken=(metadata.ctoken or 0) if has_ctoken else None,
    )
    for fragment in metadata.fragments:
        message.segment.add(ensembleMember=fragment.members, firstEntryId=fragment.first_entry_id)
    for key, value in metadata.custom:
        message.customMetadata.add(key=key, value=value)
    return message


def members_of(names: tuple[str, ...]) -> tuple[BookieId, ...]:
    """Return the validated members of an ensemble, the same tuple for the same names.

    Raises:
        UnreadableMetadataError: a name is not a bookie id.
    """
    return _first_fragment(names).members


def _fragments(message: LedgerMetadataFormat) -> tuple[Fragment, ...]:
    fragments = []
    for segment in message.segment:
        fragment = _first_fragment(tuple(segment.ensembleMember))
        first_entry_id = segment.firstEntryId
        fragments.append(Fragment(EntryId(first_entry_id), fragment.members) if first_entry_id else fragment)
    return tuple(fragments)


def _first_fragment(names: tuple[str, ...]) -> Fragment:
    fragment = _first_fragments.get(names)
    if fragment is None:
        fragment = Fragment(EntryId(0), tuple(_member_id(name) for name in names))
        if len(_first_fragments) >= _CACHED_ENSEMBLES_MAX:
            _first_fragments.clear()
        _first_fragments[names] = fragment
    return fragment


def _member_id(name: object) -> BookieId:
    # protobuf returns bytes for a string with invalid UTF-8
    try:
        return bookie_id(name if isinstance(name, str) else "")
    except InvalidIdError as error:
        raise UnreadableMetadataError(f"ledger metadata names {name!r}, which is not a bookie id") from error


def _digest(message: LedgerMetadataFormat) -> DigestType:
    if not message.HasField("digestType"):
        # Absent means the first value, as for Apache; a number unknown to this version does not.
        unknown = UnknownFieldSet(message)
        if any(unknown[index].field_number == _DIGEST_TYPE_FIELD for index in range(len(unknown))):
            raise UnreadableMetadataError("ledger metadata has an unknown digest type")
        return DigestType.CRC32
    return _DIGESTS[message.digestType]


def _custom(message: LedgerMetadataFormat) -> tuple[tuple[str, bytes], ...]:
    custom = tuple((entry.key, entry.value) for entry in message.customMetadata)
    if not all(isinstance(key, str) for key, _ in custom):
        raise UnreadableMetadataError("a key of the custom metadata is not text")
    return custom
