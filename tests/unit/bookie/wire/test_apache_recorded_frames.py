"""Our codecs of both protocol versions compared with recorded frames of Apache's client and bookie."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from bookie.model.digest import digest_for, master_key
from bookie.model.ids import LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import unpack
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache import v2
from bookie.wire.apache.framing import FrameSplitter, framed
from bookie.wire.apache.sasl import DigestMd5Login, parse_challenge
from bookie.wire.security import SaslCredentials
from tests.worlds.recorded_apache import rows

PASSWORD = b"secret \xff"
CREDENTIALS = SaslCredentials("recorder", "made for the recording")
RECORDED = (*rows("frames"), *rows("handshakes"))


def is_v2(row: dict[str, Any]) -> bool:
    """Return whether the frame is of version 2; a message of version 3 begins with the tag of its header."""
    return bytes.fromhex(row["body"])[0] == v2.VERSION


def bodies(*, is_v2_wire: bool, is_request: bool, operation: str | None = None) -> list[bytes]:
    found = [
        bytes.fromhex(row["body"])
        for row in RECORDED
        if is_v2(row) is is_v2_wire and row["is_request"] is is_request and operation in (None, row["operation"])
    ]
    assert found
    return found


def test_messages_of_version_3_are_read_and_written_again_byte_for_byte() -> None:
    """Our messages define every recorded field.

    Unknown fields would be kept and written again, so they are discarded first.
    """
    for is_request, kind in ((True, pb.Request), (False, pb.Response)):
        for body in bodies(is_v2_wire=False, is_request=is_request):
            message = kind.FromString(body)
            assert message.header.version == pb.VERSION_THREE
            message.DiscardUnknownFields()
            assert message.SerializeToString() == body


def test_each_response_of_version_3_answers_a_request() -> None:
    asked = [pb.Request.FromString(body).header for body in bodies(is_v2_wire=False, is_request=True)]
    answered = [pb.Response.FromString(body).header for body in bodies(is_v2_wire=False, is_request=False)]
    for header in answered:
        assert (header.operation, header.txnId) in [(one.operation, one.txnId) for one in asked]


def test_the_recording_contains_requests_and_responses_of_every_version_3_operation() -> None:
    for is_request, kind, ending in ((True, pb.Request, "Request"), (False, pb.Response, "Response")):
        messages = [kind.FromString(body) for body in bodies(is_v2_wire=False, is_request=is_request)]
        assert {message.header.operation for message in messages} == set(pb.OperationType.values())
        parts = {field.name for field in kind.DESCRIPTOR.fields if field.name.endswith(ending)}
        assert {field.name for message in messages for field, _ in message.ListFields()} >= parts


def test_frames_of_version_2_are_read_and_written_again_byte_for_byte() -> None:
    for body in bodies(is_v2_wire=True, is_request=True):
        request = v2.decode_request(body)
        assert v2.encode_request(request) == body
    for body in bodies(is_v2_wire=True, is_request=False):
        response = v2.decode_response(body)
        assert v2.encode_response(response) == body


def test_the_recording_contains_every_operation_of_version_2() -> None:
    asked = [v2.decode_request(body) for body in bodies(is_v2_wire=True, is_request=True)]
    assert {type(request) for request in asked} == {v2.AddV2, v2.ReadV2, v2.BatchReadV2, v2.AuthV2}
    answered = [v2.decode_response(body) for body in bodies(is_v2_wire=True, is_request=False)]
    assert {type(response) for response in answered} == {v2.AddedV2, v2.EntryV2, v2.BatchV2, v2.AuthV2}
    assert any(isinstance(request, v2.ReadV2) and request.is_fencing for request in asked)


def test_adds_of_both_versions_contain_the_key_of_their_password() -> None:
    digest = digest_for(DigestType.CRC32C, PASSWORD)
    for body in bodies(is_v2_wire=True, is_request=True, operation="add"):
        request = v2.decode_request(body)
        assert isinstance(request, v2.AddV2)
        assert request.master_key == master_key(PASSWORD)
        unpack(digest, request.entry, LedgerId(request.ledger_id), None)
    adds = [pb.Request.FromString(body) for body in bodies(is_v2_wire=False, is_request=True, operation="add")]
    for add in [one.addRequest for one in adds if one.header.operation == pb.ADD_ENTRY]:
        assert add.masterKey == master_key(PASSWORD)
        unpack(digest, add.body, LedgerId(add.ledgerId), None)


def logins(operation: str, *, is_v2_wire: bool) -> list[tuple[str, bytes]]:
    """Return the plugin and token of each message of a login, in the recorded order."""
    found = []
    for row in RECORDED:
        body = bytes.fromhex(row["body"])
        if row["operation"] != operation or (row["wire"] == "v2") is not is_v2_wire:
            continue
        if is_v2(row):
            message = v2.decode_request(body) if row["is_request"] else v2.decode_response(body)
            if isinstance(message, v2.AuthV2):
                found.append((message.plugin, message.payload))
        else:
            part = (
                pb.Request.FromString(body).authRequest
                if row["is_request"]
                else pb.Response.FromString(body).authResponse
            )
            if part.authPluginName:
                found.append((part.authPluginName, part.payload))
    return found


def answered_as_recorded(challenge: bytes, response: bytes) -> tuple[DigestMd5Login, dict[str, str]]:
    """Log in with the recorded nonce of the client, and return our answer to the recorded challenge."""
    cnonce = parse_challenge(response)["cnonce"]
    ours = DigestMd5Login(CREDENTIALS, lambda: cnonce)
    assert ours.first() == b""
    answer = ours.answer(challenge)
    assert answer is not None
    return ours, parse_challenge(answer)


def test_a_real_bookie_accepted_our_login_and_we_accept_its_proof() -> None:
    reported = logins("our login", is_v2_wire=False)
    assert {plugin for plugin, _ in reported} == {"sasl"}
    first, challenge, response, proof = [token for _, token in reported]
    ours, answer = answered_as_recorded(challenge, response)
    assert (first, answer) == (b"", parse_challenge(response))
    assert ours.answer(proof) is None
    assert ours.is_complete


@pytest.mark.parametrize("is_v2_wire", [False, True], ids=["version 3", "version 2"])
def test_the_login_of_apaches_client_differs_only_in_its_authorization_id(is_v2_wire: bool) -> None:
    """Apache's client also sends an authorization identity, which is signed.

    After the login it sends one more, empty token. The bookie answers it as if it requested no login.
    """
    *reported, surplus, thanks = logins("login", is_v2_wire=is_v2_wire)
    assert (surplus, thanks) == (("sasl", b""), ("AuthDisabledPlugin", b""))
    assert {plugin for plugin, _ in reported} == {"sasl"}
    first, challenge, response, proof = [token for _, token in reported]
    recorded = parse_challenge(response)
    _, answer = answered_as_recorded(challenge, response)
    assert (first, recorded["authzid"]) == (b"", CREDENTIALS.username)
    assert answer == {name: recorded[name] for name in answer if name != "response"} | {"response": answer["response"]}
    assert recorded["response"] == signed("AUTHENTICATE", recorded)
    assert parse_challenge(proof)["rspauth"] == signed("", recorded)


def signed(prefix: str, directives: dict[str, str]) -> str:
    """Compute the response of RFC 2831, section 2.1.2.1, with an authorization identity."""

    def md5(text: bytes) -> str:
        return hashlib.md5(text).hexdigest()

    known = hashlib.md5(f"{CREDENTIALS.username}:{directives['realm']}:{CREDENTIALS.password}".encode()).digest()
    nonces = f"{directives['nonce']}:{directives['nc']}:{directives['cnonce']}"
    a1 = known + f":{directives['nonce']}:{directives['cnonce']}:{directives['authzid']}".encode()
    a2 = f"{prefix}:{directives['digest-uri']}".encode()
    return md5(f"{md5(a1)}:{nonces}:{directives['qop']}:{md5(a2)}".encode())


@pytest.mark.parametrize("is_v2_wire", [False, True], ids=["version 3", "version 2"])
def test_a_bookie_that_requires_no_login_names_the_disabled_plugin(is_v2_wire: bool) -> None:
    asked, answered = logins("login where none is asked for", is_v2_wire=is_v2_wire)
    assert asked == ("sasl", b"")
    assert answered == ("AuthDisabledPlugin", b"")


def test_tls_is_requested_in_version_3_and_accepted_or_refused_in_the_outer_status() -> None:
    for operation, code in (("TLS", pb.EOK), ("TLS where there is none", pb.EBADREQ)):
        asked = bodies(is_v2_wire=False, is_request=True, operation=operation)
        assert {pb.Request.FromString(body).header.operation for body in asked} == {pb.START_TLS}
        assert all(pb.Request.FromString(body).HasField("startTLSRequest") for body in asked)
        answered = bodies(is_v2_wire=False, is_request=False, operation=operation)
        assert {pb.Response.FromString(body).header.operation for body in answered} == {pb.START_TLS}
        assert {pb.Response.FromString(body).status for body in answered} == {code}


def test_a_client_that_does_not_log_in_is_refused_only_in_the_outer_status() -> None:
    """This distinguishes the refusal of a client from a wrong password of a ledger."""
    for operation, asked in (("no login", pb.ADD_ENTRY), ("our login", pb.GET_BOOKIE_INFO)):
        answers = [
            pb.Response.FromString(body) for body in bodies(is_v2_wire=False, is_request=False, operation=operation)
        ]
        [refused] = [answer for answer in answers if answer.status == pb.EUA]
        assert refused.header.operation == asked
        assert [field.name for field, _ in refused.ListFields()] == ["header", "status"]


def test_frames_are_extracted_from_a_stream_in_any_pieces() -> None:
    sent = [bytes.fromhex(row["body"]) for row in RECORDED]
    stream = b"".join(framed(body) for body in sent)
    for size in (1, 7, 1000, len(stream)):
        splitter = FrameSplitter()
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert [bytes(body) for piece in pieces for body in splitter.feed(piece)] == sent
