"""Which caller may use which route, and what is logged about the caller."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from multidict import CIMultiDict

from auditor.api.access.proxies import TrustedProxies, parse_proxies
from auditor.api.grpc.server import GrpcApi
from auditor.api.http.routes import Route
from auditor.api.http.server import HttpApi
from auditor.api.settings import ApiSettings
from bookie.runtime.access.access import Access, UnauthenticatedError, client_of
from bookie.runtime.access.tokens import (
    Role,
    TokenFileError,
    Tokens,
    TokensFileError,
    make_token,
    parse_tokens,
    read_token_file,
)
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.listening import is_loopback
from tests.worlds.api import ApiWorld, TwinControl, TwinOperations, TwinUpkeep, running
from tests.worlds.clocks import ManualClock

POLICIES = {
    "open to read": (True, False),
    "closed": (False, False),
    "open": (True, True),
}


def path_of(route: Route, run_id: str) -> str:
    path = route.described_path.replace("{run_id}", run_id).replace("{state}", "paused").replace("{kind}", "bookies")
    path = path.replace("{bookie_id}", "c").replace("{ledger_id}", "9")
    return path.replace("{path}", "summary.json") + (
        "?enabled=false" if route.operation == "apache_set_recovery" else ""
    )


def allowed(caller: str, needed: Role | None, policy: tuple[bool, bool]) -> int:
    """The access rules, implemented a second time. Return 0 if the request is accepted, else the status."""
    if needed is None:
        return 0
    if caller in ("unknown token", "no bearer"):
        return 401
    if caller == "anonymous":
        return 0 if policy[0 if needed is Role.READ else 1] else 401
    return 0 if list(Role).index(Role(caller)) >= list(Role).index(needed) else 403


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
async def test_each_route_admits_only_callers_with_its_role(tmp_path: Path, policy: tuple[bool, bool]) -> None:
    read, write = policy
    async with running(tmp_path, allow_anonymous_read=read, allow_anonymous_write=write) as world:
        run_id = await world.start()
        headers = {
            "anonymous": {},
            "read": {"Authorization": f"Bearer {world.tokens[Role.READ].token}"},
            "operate": {"Authorization": f"bearer  {world.tokens[Role.OPERATE].token}"},
            "administer": {"Authorization": f"Bearer {world.tokens[Role.ADMINISTER].token}"},
            "unknown token": {"Authorization": "Bearer bkheal_nonsense"},
            "no bearer": {"Authorization": "Basic YTpi"},
        }
        for route in world.api.routes:
            for caller, sent in headers.items():
                path = path_of(route, run_id).replace("enabled=false", "enabled=true")
                reply = await world.ask(route.method, path, headers=sent)
                expected = allowed(caller, route.role, policy)
                where = (route.operation, caller, reply.status)
                assert (reply.status if reply.status in (401, 403) else 0) == expected, where
                if expected == 401:
                    assert reply.headers["WWW-Authenticate"] == "Bearer"
                    assert reply.problem == "unauthenticated"


async def test_an_operator_may_enable_recovery_but_not_disable_it(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        token, path = world.tokens[Role.OPERATE].token, "/api/v1/autorecovery/status?enabled="
        assert (await world.ask("PUT", f"{path}true", token=token)).status == 200
        assert (await world.ask("PUT", f"{path}false", token=token)).status == 403
        assert world.operations.is_on
        assert (await world.operate("PUT", f"{path}false")).status == 200
        assert not world.operations.is_on


async def test_refused_requests_change_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        run_id = await world.start()
        for token in (None, "bkheal_nonsense", world.tokens[Role.READ].token):
            for route in world.api.routes:
                if route.is_changing:
                    await world.ask(route.method, path_of(route, run_id), token=token, json={"kind": "replicas"})
        assert world.control.started == 1
        assert (await world.control.run(run_id)).state.value == "running"
        assert (world.operations.is_on, world.operations.delay_s) == (True, 60)


async def test_revoked_tokens_and_damaged_files_admit_no_one(tmp_path: Path) -> None:
    async with running(tmp_path, allow_anonymous_read=False) as world:
        token = world.tokens[Role.READ].token
        assert (await world.ask("GET", "/api/v1/status", token=token)).status == 200
        good = world.tokens_file.read_text()
        for content in ("", good + "nonsense\n", "\n".join(good.splitlines()[2:])):
            world.tokens_file.write_text(content + "#" * len(content))
            assert (await world.ask("GET", "/api/v1/status", token=token)).status == 401
        world.tokens_file.unlink()
        assert (await world.ask("GET", "/api/v1/status", token=token)).status == 401
        world.tokens_file.write_text(good)
        assert (await world.ask("GET", "/api/v1/status", token=token)).status == 200


async def test_a_token_is_refused_from_its_expiry_on(tmp_path: Path) -> None:
    async with running(tmp_path, allow_anonymous_read=False) as world:
        made = make_token("guest", Role.READ, world.clock.epoch_ms() + 60_000)
        with world.tokens_file.open("a") as file:
            file.write(made.line + "\n")
        assert (await world.ask("GET", "/api/v1/status", token=made.token)).status == 200
        world.clock.now_s += 60
        expired = await world.ask("GET", "/api/v1/status", token=made.token)
        assert (expired.status, "guest has expired" in expired.json["detail"]) == (401, True)


@pytest.mark.parametrize("end", ["tomorrow", "2027-01-31", "2027-01-31T00:00:00", "1969-01-01T00:00:00Z", "Z", "99999"])
def test_an_expiry_without_an_exact_time_is_refused(end: str) -> None:
    line = make_token("a", Role.READ).line
    with pytest.raises(TokensFileError, match="line 1"):
        parse_tokens(f"{line} {end}\n")
    (entry,) = parse_tokens(f"{line} 2027-01-31T00:00:00+01:00\n")
    assert entry.expires_ms == 1_801_350_000_000


async def test_requests_for_metrics_are_not_limited(tmp_path: Path) -> None:
    async with running(tmp_path, requests_per_second=1.0, in_flight_max=1) as world:
        statuses = [(await world.ask("GET", "/metrics")).status for _ in range(10)]
        assert statuses == [200] * 10
        guesses = [(await world.ask("GET", "/metrics", token=f"bkheal_{each}")).status for each in range(5)]
        assert guesses == [401, 401, 429, 429, 429], "requests with wrong tokens are limited"


async def test_clients_behind_a_trusted_proxy_have_separate_limits(tmp_path: Path) -> None:
    async with running(tmp_path, trusted_proxies=parse_proxies("127.0.0.1"), requests_per_second=1.0) as world:

        async def statuses(forwarded: str) -> list[int]:
            headers = {"X-Forwarded-For": forwarded}
            return [(await world.ask("GET", "/version", headers=headers)).status for _ in range(3)]

        assert await statuses("198.51.100.1") == [200, 200, 429]
        assert await statuses("198.51.100.2") == [200, 200, 429]
        assert await statuses("203.0.113.9, 198.51.100.1") == [429] * 3, (
            "addresses that the client itself put into the header are ignored"
        )
    async with running(tmp_path, requests_per_second=1.0) as world:
        limited = [
            (await world.ask("GET", "/version", headers={"X-Forwarded-For": f"198.51.100.{each}"})).status
            for each in range(3)
        ]
        assert limited == [200, 200, 429], "the header is ignored if it does not come from a configured proxy"


async def test_a_page_behind_a_trusted_proxy_is_same_site(tmp_path: Path) -> None:
    path = "/api/v1/autorecovery/status?enabled=true"
    headers = {"Origin": "https://bkheal.example", "X-Forwarded-Host": "bkheal.example"}
    async with running(tmp_path, trusted_proxies=parse_proxies("127.0.0.0/8")) as world:
        assert (await world.operate("PUT", path, headers=headers)).status == 200
        other = {**headers, "Origin": "https://evil.example"}
        assert (await world.operate("PUT", path, headers=other)).status == 403
    async with running(tmp_path) as world:
        assert (await world.operate("PUT", path, headers=headers)).status == 403


def test_forwarded_headers_are_read_from_the_end() -> None:
    proxies = TrustedProxies(parse_proxies("10.0.0.0/8, 2001:db8::/32"))

    def client(remote: str | None, *forwarded: str) -> str:
        return proxies.client(remote, CIMultiDict([("X-Forwarded-For", each) for each in forwarded]))

    assert client("198.51.100.1", "203.0.113.1") == "198.51.100.1"
    assert client("10.0.0.1") == "10.0.0.1"
    assert client("10.0.0.1", "203.0.113.1") == "203.0.113.1"
    assert client("::ffff:10.0.0.1", "203.0.113.1") == "203.0.113.1"
    assert client("10.0.0.1", "203.0.113.9", "203.0.113.1, 10.0.0.2") == "203.0.113.1"
    assert client("2001:db8::1", "nonsense") == "2001:db8::1"
    assert client("10.0.0.1", "203.0.113.1, nonsense") == "10.0.0.1"
    assert client(None) == "unknown"
    for wrong in ("10.0.0.1/8", "host", "10.0.0.0/40"):
        with pytest.raises(ValueError, match=r"does not appear|has host bits"):
            parse_proxies(wrong)


async def test_new_token_is_accepted_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        made = make_token("newcomer", Role.OPERATE)
        assert (await world.ask("PUT", "/api/v1/autorecovery/trigger_audit", token=made.token)).status == 401
        with world.tokens_file.open("a") as file:
            file.write(made.line + "\n")
        assert (await world.ask("PUT", "/api/v1/autorecovery/trigger_audit", token=made.token)).status == 200


@pytest.mark.parametrize("token", [None, "bkheal_nonsense"])
def test_without_any_tokens_the_refusal_explains_how_to_create_one(tmp_path: Path, token: str | None) -> None:
    none = ApiSettings(report_dir=tmp_path)
    some = replace(none, tokens_file=tmp_path / "tokens")
    for settings, names_the_option in ((none, True), (some, False)):
        with pytest.raises(UnauthenticatedError) as refused:
            Access(settings, ManualClock()).admit("127.0.0.1", token, Role.OPERATE)
        assert ("--tokens-file" in str(refused.value)) is names_the_option


async def test_writing_without_a_token_needs_a_loopback_address(tmp_path: Path) -> None:
    settings = ApiSettings(report_dir=tmp_path, allow_anonymous_write=True, http_port=0, grpc_port=0)
    for exposed in (
        replace(settings, http_host="0.0.0.0"),
        replace(settings, grpc_host="::"),
        replace(settings, http_host="auditor.example"),
    ):
        for api in (
            HttpApi(TwinControl(), TwinOperations(), exposed, ManualClock(), upkeep=TwinUpkeep()),
            GrpcApi(TwinControl(), exposed, ManualClock()),
        ):
            with pytest.raises(ConfigurationError, match="allow_anonymous_write"):
                await api.start()


async def test_all_unusable_settings_are_named(tmp_path: Path) -> None:
    settings = ApiSettings(report_dir=tmp_path, tokens_file=tmp_path / "none", requests_per_second=0)
    with pytest.raises(ConfigurationError) as refused:
        await HttpApi(TwinControl(), TwinOperations(), settings, ManualClock(), upkeep=TwinUpkeep()).start()
    assert len(refused.value.problems) == 2


def test_loopback_addresses_are_recognised() -> None:
    for host in ("127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"):
        assert is_loopback(host)
    for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example", ""):
        assert not is_loopback(host)


async def records(world: ApiWorld, caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    names = ("api", "action", "who", "address", "check", "run_id", "detail", "outcome")
    kept = [record for record in caplog.records if record.name == "bkheal.audit"]
    return [{name: getattr(record, name) for name in names if hasattr(record, name)} for record in kept]


async def test_only_changing_requests_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bkheal.audit")
    async with running(tmp_path) as world:
        run_id = await world.start()
        await world.operate("PUT", f"/api/v1/runs/{run_id}/state/cancelled")
        await world.ask("POST", "/api/v1/runs", json={"kind": "bookies"})
        await world.ask("POST", "/api/v1/runs", token=world.tokens[Role.READ].token, json={"kind": "bookies"})
        await world.operate("PUT", "/api/v1/autorecovery/status?enabled=false")
        await world.operate("GET", "/api/v1/status")
        found = await records(world, caplog)
    common = {"api": "http", "address": "127.0.0.1"}
    who = "somebody-who-may-administer"
    assert found == [
        {**common, "action": "start_run", "who": who, "check": "bookies", "run_id": run_id, "outcome": "202"},
        {
            **common, "action": "change_run", "who": who, "check": "bookies", "run_id": run_id,
            "detail": "cancelled", "outcome": "200",
        },
        {**common, "action": "start_run", "who": "anonymous", "outcome": "401"},
        {**common, "action": "start_run", "who": "anonymous", "outcome": "403"},
        {**common, "action": "apache_set_recovery", "who": who, "detail": "enabled=false", "outcome": "200"},
    ]  # fmt: skip
    for made in world.tokens.values():
        assert made.token not in caplog.text


def test_tokens_file_error_names_the_line_without_its_content() -> None:
    line = make_token("a", Role.READ).line
    assert [entry.name for entry in parse_tokens(f"\n# x\n{line} # of a\n")] == ["a"]
    for wrong in (
        "a read",
        "a write " + "0" * 64,
        "a read " + "0" * 63,
        "a/b read " + "0" * 64,
        "anonymous " + line[2:],
    ):
        with pytest.raises(TokensFileError, match="line 2") as refused:
            parse_tokens(f"{line}\n{wrong}\n")
        assert wrong not in str(refused.value)
    with pytest.raises(TokensFileError, match="second time"):
        parse_tokens(f"{line}\n{line}\n")
    with pytest.raises(TokensFileError, match="cannot be named"):
        make_token("two words", Role.READ)


def test_tokens_and_hashes_are_not_printed(tmp_path: Path) -> None:
    made = make_token("a", Role.OPERATE)
    assert made.token not in repr(made)
    assert made.token not in made.line
    path = tmp_path / "tokens"
    path.write_text(made.line)
    entry = Tokens(path).find(made.token)
    assert entry is not None
    assert entry.sha256 not in repr(entry)
    assert Tokens(path).find(made.token + "x") is None
    assert Tokens(path).find("") is None
    assert Tokens(path).find("\udcff") is None
    assert Tokens(None).find(made.token) is None


def test_refused_caller_gets_the_role_that_it_lacks(tmp_path: Path) -> None:
    assert client_of("2001:db8::1") == client_of("2001:db8::2") != client_of("2001:db8:1::1")
    assert client_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert client_of("unknown") == "unknown"


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"s3cret-1 s3cret-2", b"s3cret\r\nInjected: yes", b"s3cret\xff", b"s" * 70_000]
)
def test_a_file_without_exactly_one_token_is_refused_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(TokenFileError, match=str(file)) as refused:
        read_token_file(file)
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_token_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(TokenFileError, match=f"^cannot read the token in {path}: {why}$"):
            read_token_file(path)
