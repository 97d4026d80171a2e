"""Keys: scopes, lookup cache, commands and routes to create and revoke them, and the audit log."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from tests.support.clocks import Clock
from tests.support.live_service import client_of, settings_for
from xcray.cli.main import main
from xcray.client import Client
from xcray.errors import InputError, ParameterError, Unavailable, XcrayError
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
from xcray.jobs.store.keys import Key
from xcray.jobs.store.tokens import (
    TOKEN_PATTERN,
    NewToken,
    check_limits,
    check_scopes,
    create_token,
    parse_token,
)
from xcray.service.app import create_app
from xcray.service.http import auth
from xcray.service.http.audit import MAX_REFUSALS_PER_MINUTE, Auditor
from xcray.service.http.auth import (
    ANONYMOUS,
    EXPIRY_SECONDS,
    REFRESH_SECONDS,
    TOUCH_SECONDS,
    Authenticator,
    Caller,
    Unauthorised,
)
from xcray.service.settings import Settings, check_address

# Tokens


def test_a_token_has_256_bits_that_its_record_does_not_contain() -> None:
    token = create_token()
    assert TOKEN_PATTERN.fullmatch(token.token)
    assert parse_token(token.token) == (token.key_id, token.digest)
    secret = (
        token.token.rsplit("_", 1)[1]
        if token.token.count("_") == 2
        else token.token.split("_", 2)[2]
    )
    assert len(secret) * 6 >= 256
    assert secret not in token.digest
    assert len({create_token().token for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "token",
    [
        "",
        "xck_",
        "xck_a_b",
        "Bearer x",
        create_token().token[:-1],
        create_token().token + "a",
        "\u0660" * 68,
    ],
    ids=["empty", "prefix", "short", "scheme", "one-less", "one-more", "digits"],
)
def test_invalid_tokens_are_not_parsed(token: str) -> None:
    assert parse_token(token) is None


def test_scopes_and_limits_are_checked() -> None:
    assert check_scopes(["submit", "read", "submit"]) == ["read", "submit"]
    assert check_limits({"max_queued": 0, "upload_bytes": 5}) == {
        "max_queued": 0,
        "upload_bytes": 5,
    }
    for wrong in (
        lambda: check_scopes([]),
        lambda: check_scopes(["root"]),
    ):
        with pytest.raises(ParameterError):
            wrong()
    for limits in ({"speed": 1}, {"max_queued": -1}, {"max_queued": True}, {"max_queued": 1.5}):
        with pytest.raises(ParameterError):
            check_limits(limits)


# The lookup cache


class Keys:
    """A store of keys that counts queries and can be unavailable."""

    def __init__(self) -> None:
        self.records: dict[str, Key] = {}
        self.n_queries = self.touched = 0
        self.unavailable = False

    def add(
        self, scopes: tuple[str, ...] = ("read",), expires: float | None = None, **limits: int
    ) -> NewToken:
        """Add a key and return its token."""
        token = create_token()
        self.records[token.digest] = Key(
            token.key_id, "mine", "n", scopes, token.digest, "", expires, None, None, dict(limits)
        )
        return token

    def find(self, digest: str) -> Key | None:
        """Implement `JobStore.find_key`."""
        self.n_queries += 1
        if self.unavailable:
            raise Unavailable("the store is away")
        return self.records.get(digest)

    def has_any(self) -> bool:
        """Implement `JobStore.has_keys`."""
        self.n_queries += 1
        if self.unavailable:
            raise Unavailable("the store is away")
        return bool(self.records)

    def touch(self, key_id: str) -> None:
        """Implement `JobStore.touch_key`."""
        self.touched += 1


def request_with(*values: str) -> Request:
    """Return a request with these Authorization headers."""
    headers = [(b"authorization", value.encode("latin-1")) for value in values]
    return Request(
        {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
    )


class AuthenticatorSetup:
    """An authenticator with its store of keys and its clock."""

    def __init__(self, **how: Any) -> None:
        self.keys = Keys()
        self.clock = Clock(1000.0)
        self.identify = Authenticator(self.keys, clock=self.clock, wall_clock=self.clock, **how)

    async def ask(self, token: str) -> Caller:
        """Authenticate a request with this token."""
        result = await self.identify(request_with(f"Bearer {token}"))
        await asyncio.sleep(0)
        return result


def run(test: Callable[[AuthenticatorSetup], Any], **how: Any) -> None:
    async def begun() -> None:
        await test(AuthenticatorSetup(**how))

    asyncio.run(begun())


def test_a_key_is_looked_up_once_while_it_is_fresh() -> None:
    async def test(setup: AuthenticatorSetup) -> None:
        credential = setup.keys.add(("submit",), requests_per_minute=7)
        first = await setup.ask(credential.token)
        request = setup.keys.n_queries
        for _ in range(50):
            assert await setup.ask(credential.token) is first
        assert setup.keys.n_queries == request
        assert (first.tenant, first.key_id, first.limits.requests_per_minute) == (
            "mine",
            credential.key_id,
            7,
        )
        assert first.has_scope("read")
        assert first.has_scope("models")
        assert not first.has_scope("predict")
        assert not first.has_scope("admin")

    run(test)


def test_wrong_keys_do_not_displace_valid_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(setup: AuthenticatorSetup) -> None:
        credential = setup.keys.add()
        await setup.ask(credential.token)
        for _ in range(20):
            with pytest.raises(Unauthorised):
                await setup.ask(create_token().token)
        request = setup.keys.n_queries
        await setup.ask(credential.token)
        assert setup.keys.n_queries == request
        assert len(setup.identify._lookups) == 8

    monkeypatch.setattr(auth, "MAX_CACHED_KEYS", 8)
    run(test)


def test_a_revoked_key_is_refused_within_five_seconds() -> None:
    async def test(setup: AuthenticatorSetup) -> None:
        credential = setup.keys.add()
        await setup.ask(credential.token)
        setup.keys.records[credential.digest].revoked = "now"
        setup.clock.seconds += EXPIRY_SECONDS
        with pytest.raises(Unauthorised, match="revoked"):
            await setup.ask(credential.token)

    assert EXPIRY_SECONDS <= 5.0
    run(test)


def test_all_replicas_refuse_a_revoked_key(tmp_path: Path) -> None:
    """Two services on one store refuse a revoked key within the expiry time of their caches."""
    url = f"sqlite:///{tmp_path / 'xcray.db'}"
    stores = [JobStore(url), JobStore(url)]
    token = create_token()
    stores[0].keys.add("default", "n", ["read"], token.digest, key_id=token.key_id)
    clock = Clock(1000.0)

    async def test() -> None:
        replicas = [Authenticator(store.keys, clock=clock) for store in stores]
        for who in replicas:
            assert (await who(request_with(f"Bearer {token.token}"))).key_id == token.key_id
        stores[0].keys.revoke(token.key_id)
        clock.seconds += EXPIRY_SECONDS
        for who in replicas:
            with pytest.raises(Unauthorised, match="revoked"):
                await who(request_with(f"Bearer {token.token}"))

    asyncio.run(test())
    for store in stores:
        store.close()


def test_stale_entries_are_refreshed_in_the_background() -> None:
    async def test(setup: AuthenticatorSetup) -> None:
        credential = setup.keys.add()
        await setup.ask(credential.token)
        setup.keys.records[credential.digest].revoked = "now"
        setup.clock.seconds += REFRESH_SECONDS
        await setup.ask(credential.token)  # still cached; starts a refresh in the background
        while setup.identify._pending:
            await asyncio.sleep(0.001)
        with pytest.raises(Unauthorised, match="revoked"):
            await setup.ask(credential.token)

    run(test)


def test_a_cached_key_is_refused_when_it_expires() -> None:
    async def test(setup: AuthenticatorSetup) -> None:
        credential = setup.keys.add(expires=setup.clock.seconds + 1)
        await setup.ask(credential.token)
        setup.clock.seconds += 1
        with pytest.raises(Unauthorised, match="expired"):
            await setup.ask(credential.token)

    run(test)


def test_cached_keys_work_for_a_limited_time_without_the_store() -> None:
    async def test(setup: AuthenticatorSetup) -> None:
        result, other = setup.keys.add(), setup.keys.add()
        await setup.ask(result.token)
        setup.keys.unavailable = True
        setup.clock.seconds += EXPIRY_SECONDS + 9
        assert (await setup.ask(result.token)).key_id == result.key_id
        with pytest.raises(Unavailable):
            await setup.ask(other.token)  # never looked up before
        setup.clock.seconds += 1
        with pytest.raises(Unavailable):
            await setup.ask(result.token)

    run(test, grace_seconds=10.0)


def test_requests_without_a_key_are_accepted_until_the_first_key_exists() -> None:
    async def test(setup: AuthenticatorSetup) -> None:
        assert await setup.identify(request_with()) is ANONYMOUS
        assert setup.identify.peek(request_with()) is ANONYMOUS
        credential = setup.keys.add()
        setup.clock.seconds += REFRESH_SECONDS
        with pytest.raises(Unauthorised, match="xcray keys create"):
            await setup.identify(request_with())
        assert setup.identify.peek(request_with()) is None
        setup.keys.records[credential.digest].revoked = "now"
        setup.clock.seconds += EXPIRY_SECONDS
        with pytest.raises(Unauthorised):
            await setup.identify(request_with())

    run(test)


def test_a_public_address_accepts_no_request_without_a_key() -> None:
    async def test(setup: AuthenticatorSetup) -> None:
        with pytest.raises(Unauthorised):
            await setup.identify(request_with())
        assert setup.identify.peek(request_with()) is None

    run(test, admits_everyone=False)


def test_invalid_keys_are_refused_with_the_same_message() -> None:
    async def test(setup: AuthenticatorSetup) -> None:
        result, other = setup.keys.add(), setup.keys.add()
        swapped = f"{result.token[:24]}{other.token[24:]}"  # the id of one, the secret of another
        messages = set()
        for inputs in (
            f"Bearer {create_token().token}",
            f"Bearer {swapped}",
            f"Bearer {result.token[:-1]}",
            "Bearer ",
        ):
            with pytest.raises(Unauthorised) as caught:
                await setup.identify(request_with(inputs))
            messages.add(caught.value.message)
        assert len(messages) == 1
        for wrong in (
            ("Basic YTpi",),
            (f"Bearer {result.token}", f"Bearer {result.token}"),
            (f"Bearer {'x' * 300}",),
        ):
            with pytest.raises(Unauthorised):
                await setup.identify(request_with(*wrong))
        assert (
            await setup.identify(request_with(f"bearer {result.token}"))
        ).key_id == result.key_id

    run(test)


def test_the_last_use_is_recorded_at_intervals() -> None:
    async def test(setup: AuthenticatorSetup) -> None:
        credential = setup.keys.add()
        for _ in range(20):
            await setup.ask(credential.token)
            setup.clock.seconds += EXPIRY_SECONDS
        assert setup.keys.touched == -(-int(20 * EXPIRY_SECONDS) // int(TOUCH_SECONDS))

    run(test)


# Commands and routes


@pytest.fixture
def key(own_home: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Create the first admin key of a home by the command; no service runs."""
    assert main(["keys", "create", "--scopes", "admin", "--name", "ops", "--json"]) == 0
    return str(json.loads(capsys.readouterr().out)["key"])


@pytest.fixture
def app(own_home: Path) -> FastAPI:
    return create_app(settings_for(own_home))


@pytest.fixture
def http(key: str, app: FastAPI) -> Iterator[httpx.Client]:
    """Yield a client with that key."""
    with client_of(app) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        yield client


def test_commands_create_list_and_revoke_keys(
    key: str, own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ["--tenant", "t", "--name", "ci", "--expires", "90d", "--json"]
    how += ["--limit", "requests_per_minute=600"]
    assert main(["keys", "create", "--scopes", "predict,submit", *how]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["tenant"], document["scopes"], document["limits"]) == (
        "t",
        ["predict", "submit"],
        {"requests_per_minute": 600},
    )
    assert main(["keys", "list", "--json"]) == 0
    shown = capsys.readouterr().out
    assert [each["name"] for each in json.loads(shown)["keys"]] == ["ops", "ci"]
    assert document["key"].split("_", 2)[2] not in shown
    assert main(["keys", "revoke", document["id"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["revoked"]
    store = own_home / "xcray.db"
    assert all(
        document["key"].split("_", 2)[2].encode() not in path.read_bytes()
        for path in own_home.glob(f"{store.name}*")
    )
    for wrong in (
        ["--scopes", "root"],
        ["--scopes", "read", "--limit", "speed=1"],
        ["--scopes", "read", "--tenant", "../x"],
    ):
        assert main(["keys", "create", *wrong]) == 2
    assert main(["keys", "revoke", "key_none"]) != 0


def test_the_first_key_is_needed_at_once(own_home: Path) -> None:
    with client_of(create_app(settings_for(own_home))) as http:
        assert http.get("/v1/me").json()["key_id"] is None
        created = http.post("/v1/keys", json={"name": "me", "scopes": ["admin"]})
        assert created.status_code == 201
        assert http.get("/v1/me").status_code == 401
        own = {"Authorization": f"Bearer {created.json()['key']}"}
        assert http.get("/v1/me", headers=own).json()["key_id"] == created.json()["id"]


def test_routes_create_list_and_revoke_keys(http: httpx.Client, app: FastAPI) -> None:
    request = {
        "name": "ci",
        "scopes": ["submit"],
        "tenant": "t",
        "expires_seconds": 3600,
        "limits": {"max_queued": 3},
    }
    response = http.post("/v1/keys", json=request)
    assert response.status_code == 201
    document = response.json()
    assert response.headers["location"] == f"/v1/keys/{document['id']}"
    own = {"Authorization": f"Bearer {document['key']}"}
    assert http.get("/v1/jobs", headers=own).status_code == 200
    assert http.get("/v1/keys", headers=own).json()["code"] == "FORBIDDEN"
    assert http.post("/v1/keys", json=request, headers=own).status_code == 403
    shown = http.get("/v1/keys").json()["keys"]
    assert [each["name"] for each in shown] == ["ops", "ci"]
    assert not any("key" in each or "digest" in each for each in shown)
    assert [each["name"] for each in http.get("/v1/keys?tenant=t").json()["keys"]] == ["ci"]
    assert http.delete(f"/v1/keys/{document['id']}").status_code == 204
    assert http.delete("/v1/keys/key_none").status_code == 404
    assert http.post("/v1/keys", json={**request, "limits": {"speed": 1}}).json()["code"] == "LIMIT"
    until_refused(http, own)


def until_refused(http: httpx.Client, own: dict[str, str]) -> None:
    """Send requests until a revoked key is refused.

    The exact time is tested above with a clock.
    """
    for _ in range(2_000):
        answer = http.get("/v1/jobs", headers=own)
        if answer.status_code == 401:
            assert answer.headers["www-authenticate"].startswith("Bearer")
            return
        time.sleep(0.05)
    raise AssertionError("a revoked key went on for 2,000 requests")


def test_only_admin_keys_can_access_any_tenant(http: httpx.Client, app: FastAPI) -> None:
    token = create_token()
    store: JobStore = app.state.app_state.store
    store.keys.add("t", "n", ["submit"], token.digest, key_id=token.key_id)
    job, _ = store.jobs.submit(JobSubmission({}, name="n", tenant="t"))
    own = {"Authorization": f"Bearer {token.token}"}
    assert http.get(f"/v1/jobs/{job.id}").status_code == 404
    assert http.get(f"/v1/jobs/{job.id}?tenant=t").status_code == 200
    assert http.get(f"/v1/jobs/{job.id}?tenant=t", headers=own).status_code == 200
    assert http.get("/v1/jobs?tenant=default", headers=own).json()["code"] == "FORBIDDEN"
    assert http.get("/v1/jobs?tenant=a&tenant=b").json()["code"] == "TENANT"
    assert http.get("/v1/jobs?tenant=../../x").json()["code"] == "BAD_NAME"


def test_changes_and_refusals_are_audited(
    http: httpx.Client, app: FastAPI, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"Content-Type": "application/octet-stream", "X-Request-ID": "mine-1"}
    upload = http.post("/v1/uploads", content=b"{}", headers=content).json()["id"]
    job, _ = app.state.app_state.store.jobs.submit(JobSubmission({}, name="n"))
    assert http.post(f"/v1/jobs/{job.id}/stop").status_code == 200
    assert http.get("/v1/jobs").status_code == 200  # read-only requests are not recorded
    # failed requests without a change are not recorded
    assert http.post("/v1/jobs/job_none/stop").status_code == 404
    assert http.get("/v1/jobs", headers={"Authorization": "Bearer no"}).status_code == 401
    entries = http.get("/v1/audit").json()["entries"]
    assert [each["action"] for each in entries] == [
        "login.refused",
        "job.stop",
        "upload.create",
        "key.create",
    ]
    assert (entries[2]["request_id"], entries[2]["subject"]) == ("mine-1", "/v1/uploads")
    assert entries[1]["subject"] == f"/v1/jobs/{job.id}/stop"
    assert entries[1]["key_id"].startswith("key_")
    assert upload.startswith("upl_")
    first = http.get("/v1/audit?limit=2").json()
    rest = http.get(f"/v1/audit?limit=2&page_token={first['next_page_token']}").json()
    assert [each["seq"] for each in first["entries"] + rest["entries"]] == [4, 3, 2, 1]
    assert [each["seq"] for each in http.get("/v1/audit?action=job.stop").json()["entries"]] == [3]
    assert main(["audit", "--action", "job.stop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entries"][0]["seq"] == 3


def test_a_flood_of_refused_requests_is_counted_not_recorded() -> None:
    entries: list[tuple[Any, ...]] = []

    class Entries:
        """Records audit entries."""

        def record(self, *entry: Any) -> None:
            """Implement `AuditTable.record`."""
            entries.append(entry)

        def trim(self, keep: int) -> int:
            """Implement `AuditTable.trim`."""
            return 0

    async def flood() -> None:
        clock = Clock(1000.0)
        auditor = Auditor(Entries(), 1000, clock)  # type: ignore[arg-type]  # the two methods it needs
        scope = {
            "method": "GET",
            "path": "/v1/jobs\r\n\x1b[31m" + "x" * 1000,
            "client": ("10.0.0.1", 1),
        }
        for _ in range(1000):
            await auditor.record_refusal(scope, "no")
        clock.seconds += 60
        await auditor.record_refusal(scope, "no")

    asyncio.run(flood())
    assert len(entries) == MAX_REFUSALS_PER_MINUTE + 1
    assert entries[-1][4]["unwritten"] == 1000 - MAX_REFUSALS_PER_MINUTE
    assert len(entries[0][4]["path"]) <= 80
    assert entries[0][4]["path"].isprintable()


# Clients and addresses


def test_clients_take_the_key_from_argument_file_or_environment(
    key: str, http: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(http.base_url)
    with Client(url) as anonymous, pytest.raises(XcrayError) as caught:
        list(anonymous.jobs.list())
    assert caught.value.code == "UNAUTHORISED"
    file = tmp_path / "key"
    file.write_text(f"{key}\n")
    with Client(url, key=key) as inputs:
        assert list(inputs.jobs.list()) == []
    monkeypatch.setenv("XCRAY_KEY_FILE", str(file))
    with Client(url) as from_file:
        assert list(from_file.jobs.list()) == []
    assert main(["jobs", "list", "--server", url]) == 0
    monkeypatch.setenv("XCRAY_KEY", "xck_wrong")
    assert main(["jobs", "list", "--server", url]) != 0
    monkeypatch.setenv("XCRAY_KEY", key + "\r\nX-Evil: 1")
    with pytest.raises(InputError):
        Client(url)


def test_public_addresses_need_a_key_and_tls() -> None:
    for host in ("127.0.0.1", "127.3.2.1", "::1", "localhost"):
        check_address(Settings(host=host))
    for host in ("::", "10.1.2.3", "example.org", "192.168.1.1"):
        with pytest.raises(ParameterError, match=r"127\.0\.0\.1") as refused:
            check_address(Settings(host=host))
        assert refused.value.code == "PUBLIC_ADDRESS"
        check_address(Settings(host=host, insecure_dev=True))
    public = {"host": "0.0.0.0"}
    for inputs, has_keys, code in (
        ({}, False, "PUBLIC_ADDRESS"),
        ({}, True, "PLAIN_HTTP"),
        ({"behind_proxy": True}, False, "PUBLIC_ADDRESS"),
        ({"behind_proxy": True}, True, None),
        ({"tls_certfile": Path("c"), "tls_keyfile": Path("k")}, True, None),
        ({"tls_certfile": Path("c")}, True, "TLS"),
    ):
        settings = Settings(**{**public, **inputs})
        assert not settings.admits_everyone
        if code is None:
            check_address(settings, lambda has=has_keys: has)  # type: ignore[misc]
            continue
        with pytest.raises(ParameterError) as caught:
            check_address(settings, lambda has=has_keys: has)  # type: ignore[misc]
        assert caught.value.code == code
