"""Logins compared with the examples of RFC 2831 and RFC 4616, and with bookies that do not prove their identity."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.wire.apache.sasl import DigestMd5Login, LoginError, login, parse_challenge
from bookie.wire.security import SaslCredentials, SaslMechanism

PASSWORD = "secret"

RFC_2831_EXAMPLES = {
    "imap": (
        "OA6MG9tEQGm2hh",
        "OA6MHXh6VqTrRk",
        "d388dad90d4bbd760a152321f2143af7",
        "ea40f60335c427b5527b84dbabcdfffd",
    ),
    "acap": (
        "OA9BSXrbuRhWay",
        "OA9BSuZWMSpW8m",
        "6084c6db3fede7352c551284490fd0fc",
        "2f0b3d7c3c2e486600ef710726aa2eae",
    ),
}


def challenge(nonce: str = "n", *more: str) -> bytes:
    return ",".join(['realm="elwood.innosoft.com"', f'nonce="{nonce}"', "algorithm=md5-sess", *more]).encode()


def digest_login(service: str = "imap", cnonce: str = "c") -> DigestMd5Login:
    return DigestMd5Login(SaslCredentials("chris", PASSWORD), lambda: cnonce, service, "elwood.innosoft.com")


def test_the_service_and_host_for_a_bookie_are_constants() -> None:
    answer = DigestMd5Login(SaslCredentials("chris", PASSWORD), lambda: "c").answer(challenge())
    assert answer is not None
    assert parse_challenge(answer)["digest-uri"] == "bookkeeper/bookkeeper"


@pytest.mark.parametrize("service", RFC_2831_EXAMPLES)
def test_the_examples_of_the_rfc_are_answered_correctly(service: str) -> None:
    nonce, cnonce, response, proof = RFC_2831_EXAMPLES[service]
    chris = digest_login(service, cnonce)
    assert chris.first() == b""
    answer = chris.answer(challenge(nonce, 'qop="auth"', "charset=utf-8"))
    assert answer is not None
    directives = parse_challenge(answer)
    assert directives == {
        "charset": "utf-8",
        "username": "chris",
        "realm": "elwood.innosoft.com",
        "nonce": nonce,
        "nc": "00000001",
        "cnonce": cnonce,
        "digest-uri": f"{service}/elwood.innosoft.com",
        "response": response,
        "qop": "auth",
    }
    assert not chris.is_complete
    assert chris.answer(f"rspauth={proof}".encode()) is None
    assert chris.is_complete


def test_apaches_bookies_sign_constant_names() -> None:
    answer = login(SaslCredentials("u", PASSWORD)).answer(b'nonce="n",algorithm=md5-sess')
    assert answer is not None
    directives = parse_challenge(answer)
    assert (directives["digest-uri"], directives["realm"]) == ("bookkeeper/bookkeeper", "bookkeeper")


def test_every_login_has_its_own_nonce() -> None:
    answers = {login(SaslCredentials("u", PASSWORD)).answer(challenge()) for _ in range(10)}
    assert len({parse_challenge(answer or b"")["cnonce"] for answer in answers}) == 10


@pytest.mark.parametrize("token", [b"rspauth=" + b"0" * 32, b'rspauth=""', b"realm=x", 'rspauth="\xe9"'.encode()])
def test_a_bookie_without_the_password_is_detected(token: bytes) -> None:
    chris = digest_login()
    chris.answer(challenge())
    with pytest.raises(LoginError, match="did not prove") as failure:
        chris.answer(token)
    assert PASSWORD not in str(failure.value)
    assert not chris.is_complete


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\0\xff\xfe",
        b"no directives here",
        b'realm="x"',
        b'nonce="n",algorithm=md5',
        b'nonce="n"',
        b'nonce="n",algorithm=md5-sess,qop="auth-int,auth-conf"',
        b'nonce="n",algorithm=md5-sess,stale=true',
        b'nonce="n",algorithm=md5-sess,realm="unfinished',
        b'nonce="' + b"n" * 3000 + b'",algorithm=md5-sess',
    ],
)
def test_unsupported_challenges_are_refused(token: bytes) -> None:
    with pytest.raises(LoginError):
        digest_login().answer(token)


def test_a_completed_login_refuses_further_challenges() -> None:
    nonce, cnonce, _, proof = RFC_2831_EXAMPLES["imap"]
    chris = digest_login("imap", cnonce)
    chris.answer(challenge(nonce))
    chris.answer(f'rspauth="{proof}"'.encode())
    with pytest.raises(LoginError, match="completed"):
        chris.answer(f"rspauth={proof}".encode())


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_names_with_any_characters_survive_the_round_trip(username: str, password: str, realm: str) -> None:
    mine = DigestMd5Login(SaslCredentials(username, password), lambda: "c")
    quoted = realm.replace("\\", "\\\\").replace('"', '\\"')
    answer = mine.answer(f'realm="{quoted}",nonce="n",algorithm=md5-sess,charset=utf-8'.encode())
    assert answer is not None
    assert (parse_challenge(answer)["username"], parse_challenge(answer)["realm"]) == (username, realm)


def test_names_outside_of_latin_1_need_a_bookie_that_offers_utf_8() -> None:
    mine = DigestMd5Login(SaslCredentials("\N{SNOWMAN}", PASSWORD), lambda: "c")
    with pytest.raises(LoginError, match="UTF-8"):
        mine.answer(challenge())


@given(st.binary(max_size=200))
def test_random_tokens_are_directives_or_refused(token: bytes) -> None:
    with contextlib.suppress(LoginError):
        assert parse_challenge(token)


def test_plain_completes_in_one_message() -> None:
    tim = login(SaslCredentials("tim", "tanstaaftanstaaf", SaslMechanism.PLAIN))
    assert tim.first() == b"\0tim\0tanstaaftanstaaf"
    assert tim.answer(b"") is None
    assert tim.is_complete


def test_plain_refuses_a_further_challenge() -> None:
    with pytest.raises(LoginError, match="another mechanism"):
        login(SaslCredentials("tim", PASSWORD, SaslMechanism.PLAIN)).answer(challenge())


def test_passwords_are_not_in_texts() -> None:
    for mechanism in SaslMechanism:
        credentials = SaslCredentials("tim", PASSWORD, mechanism)
        assert PASSWORD not in repr(credentials)
        assert PASSWORD not in repr(login(credentials))
