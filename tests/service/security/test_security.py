"""Threats: permissions of each route, path traversal, headers and browsers, information leaks."""

from __future__ import annotations

import asyncio
import io
import json
import re
import socket
import time
from pathlib import Path
from typing import Any, Final

import pytest
from fastapi import FastAPI

from tests.support.clocks import Clock
from tests.support.live_service import publish, settings_for
from tests.support.raw_requests import RawResponse, ask, operations
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
from xcray.jobs.store.tokens import NewToken, create_token
from xcray.service.app import create_app
from xcray.service.http.audit import ACTIONS, SAFE_METHODS
from xcray.service.observability.request_log import configure_logging

# The scope that each route needs (T3). The first test fails for a route that is missing here.

NEEDS: Final[dict[str, str]] = {
    "POST /v1/models/{reference}:predict": "predict",
    "POST /v1/models/{reference}:explain": "predict",
    "POST /v1/models/{reference}:batchPredict": "submit",
    "POST /v1/models/{reference}:update": "submit",
    "POST /v1/models/{reference}/feedback": "predict",
    "GET /v1/models/{reference}/feedback": "read",
    "GET /v1/models/{reference}/feedback:export": "read",
    "GET /v1/models/{reference}/feedback/{id}": "read",
    "DELETE /v1/models/{reference}/feedback/{id}": "submit",
    "GET /v1/jobs/{job_id}/output": "read",
    "GET /v1/jobs/{job_id}/output/{file}": "read",
    "POST /v1/uploads": "submit",
    "POST /v1/datasets": "submit",
    "GET /v1/datasets": "read",
    "GET /v1/datasets/{dataset_id}": "read",
    "GET /v1/datasets/{dataset_id}/histograms": "read",
    "GET /v1/datasets/{dataset_id}/picture": "read",
    "GET /v1/datasets/{dataset_id}/pictures/runs": "read",
    "DELETE /v1/datasets/{dataset_id}": "submit",
    "POST /v1/jobs": "submit",
    "POST /v1/jobs:estimate": "submit",
    "GET /v1/jobs": "read",
    "GET /v1/jobs/{job_id}": "read",
    "GET /v1/jobs/{job_id}/events": "read",
    "GET /v1/jobs/{job_id}/logs": "read",
    "GET /v1/jobs/{job_id}/timeline": "read",
    "GET /v1/jobs/{job_id}/pictures/{picture}": "read",
    "GET /v1/jobs/{job_id}/labels": "read",
    "POST /v1/jobs/{job_id}/stop": "submit",
    "POST /v1/jobs/{job_id}/resume": "submit",
    "DELETE /v1/jobs/{job_id}": "submit",
    "GET /v1/models": "models",
    "GET /v1/models/{name}": "models",
    "GET /v1/models/{name}/versions/{version}": "models",
    "GET /v1/models/{name}/versions/{version}/card": "models",
    "GET /v1/models/{name}/versions/{version}/report": "models",
    "GET /v1/models/{name}/versions/{version}/pictures/{picture}": "models",
    "GET /v1/models/{name}/versions/{version}/archive": "read",
    "GET /v1/models/{name}:diff": "models",
    "POST /v1/models:compare": "read",
    "DELETE /v1/models/{name}/versions/{version}": "submit",
    "PUT /v1/models/{name}/aliases/{alias}": "submit",
    "DELETE /v1/models/{name}/aliases/{alias}": "submit",
    "GET /v1/models/{name}/aliases/{alias}/shadow": "read",
    "GET /v1/models/{reference}/labels": "models",
    "GET /v1/models/{reference}/labels/{label}": "models",
    "GET /v1/solvers": "read",
    "GET /v1/solvers/{solver}": "read",
    "POST /v1/models/{reference}:load": "submit",
    "POST /v1/models/{reference}:unload": "submit",
    "GET /v1/models/{name}/label-sets": "models",
    "GET /v1/models/{name}/label-sets/{set}": "models",
    "PUT /v1/models/{name}/label-sets/{set}": "submit",
    "DELETE /v1/models/{name}/label-sets/{set}": "submit",
    "GET /v2": "open",
    "GET /v2/health/live": "open",
    "GET /v2/health/ready": "open",
    "GET /v2/models/{name}": "models",
    "GET /v2/models/{name}/versions/{version}": "models",
    "GET /v2/models/{name}/ready": "models",
    "GET /v2/models/{name}/versions/{version}/ready": "models",
    "POST /v2/models/{name}/infer": "predict",
    "POST /v2/models/{name}/versions/{version}/infer": "predict",
    "POST /v2/repository/index": "models",
    "POST /v2/repository/models/{name}/load": "submit",
    "POST /v2/repository/models/{name}/unload": "submit",
    "POST /v1/keys": "admin",
    "GET /v1/keys": "admin",
    "DELETE /v1/keys/{key_id}": "admin",
    "GET /v1/audit": "admin",
    "GET /v1/me": "any",
    "GET /healthz": "open",
    "GET /readyz": "open",
    "GET /metrics": "metrics",
    "GET /docs": "open",
    "GET /openapi.json": "admin",
    "GET /": "open",
    "GET /static/{name}": "open",
}
MAY: Final = {  # the keys that have each scope
    "read": {"read", "submit", "admin"},
    "models": {"read", "predict", "submit", "admin"},
    "predict": {"predict", "admin"},
    "submit": {"submit", "admin"},
    "metrics": {"metrics", "admin"},
    "any": {"read", "predict", "submit", "metrics", "admin"},
    "admin": {"admin"},
}
NO_KEY: Final = ("none", "wrong", "revoked", "expired")
WITH_KEY: Final = ("read", "predict", "submit", "metrics", "admin")


class AppSetup:
    """An app with one key per scope and a key of another tenant."""

    def __init__(self, home: Path, **changes: Any) -> None:
        self.app: FastAPI = create_app(settings_for(home, **changes))
        self.app_state = self.app.state.app_state
        self.store: JobStore = self.app_state.store
        self.tokens = {scope: self.key([scope]) for scope in WITH_KEY}
        self.tokens["wrong"] = create_token().token
        self.tokens["expired"] = self.key(["admin"], expires=time.time() - 1)
        self.tokens["revoked"] = self.key(["admin"])
        self.store.keys.revoke(f"key_{self.tokens['revoked'].split('_')[1]}")
        self.tokens["other"] = self.key(["predict", "submit"], tenant="other")

    def key(self, scopes: list[str], tenant: str = "default", expires: float | None = None) -> str:
        """Create a key and return its token."""
        token: NewToken = create_token()
        self.store.keys.add(tenant, "n", scopes, token.digest, key_id=token.key_id, expires=expires)
        return token.token

    async def ask(self, role: str, method: str, path: str, **how: Any) -> RawResponse:
        """Send a request with one of these keys."""
        headers = {} if role == "none" else {"authorization": f"Bearer {self.tokens[role]}"}
        return await ask(
            self.app, method, path, **{**how, "headers": {**headers, **how.get("headers", {})}}
        )


@pytest.fixture
def app_setup(own_home: Path) -> AppSetup:
    return AppSetup(own_home)


def test_every_route_is_in_the_table(app_setup: AppSetup) -> None:
    results = {f"{method} {template}" for method, template in operations(app_setup.app)}
    assert results == set(NEEDS)


def test_every_route_requires_its_scope(app_setup: AppSetup) -> None:
    async def matrix() -> int:
        cells = 0
        for operation, needed in NEEDS.items():
            method, template = operation.split(" ")
            path = filled(template, "none")
            for role in (*NO_KEY, *WITH_KEY):
                body = b"{}" if method in ("POST", "PUT") else b""
                response = await app_setup.ask(role, method, path, body=body)
                assert response.status < 500 or response.status == 503, (operation, role, response)
                if needed == "open":
                    assert response.status not in (401, 403), (operation, role, response)
                elif role in NO_KEY:
                    assert (response.status, response.code or "UNAUTHORISED") == (
                        401,
                        "UNAUTHORISED",
                    ), (
                        operation,
                        role,
                        response,
                    )
                    assert response.headers["www-authenticate"].startswith("Bearer")
                elif role in MAY[needed]:
                    assert response.status not in (401, 403), (operation, role, response)
                else:
                    assert response.status == 403, (operation, role, response)
                cells += 1
        return cells

    assert asyncio.run(matrix()) == len(NEEDS) * 9


def test_a_caller_is_told_its_scopes(app_setup: AppSetup) -> None:
    me = json.loads(asyncio.run(app_setup.ask("submit", "GET", "/v1/me")).body)
    assert (me["tenant"], me["scopes"]) == ("default", ["read", "submit"])
    assert me["key_id"] == f"key_{app_setup.tokens['submit'].split('_')[1]}"


def filled(template: str, what: str) -> str:
    """Return the path of a template with its parameters replaced by `what`."""
    template = template.replace("{version}", "1")
    return re.sub(r"\{\w+\}", what, template)


def test_resources_of_another_tenant_are_not_found(app_setup: AppSetup, tmp_path: Path) -> None:
    job, _ = app_setup.store.jobs.submit(JobSubmission({}, name="n"))
    data = app_setup.store.datasets.add("docs", str(tmp_path / "none"), status="READY")
    publish(app_setup.app_state.registry_of("default"), "docs", tmp_path / "staged")
    app_setup.app_state.registry_of("default").label_sets("docs").put("mine", ["csv"])
    app_setup.app_state.registry_of("default").aliases.set("docs", "prod", 1)
    real = {
        "job_id": job.id,
        "dataset_id": data.id,
        "name": "docs",
        "reference": "docs",
        "alias": "prod",
        "set": "mine",
    }

    async def send_requests() -> int:
        octets = {"content-type": "application/octet-stream"}
        upload = json.loads(
            (await app_setup.ask("submit", "POST", "/v1/uploads", body=b"x", headers=octets)).body
        )["id"]
        cells = 0
        bodies = {
            "predict": {"instances": [{"text": "a"}]},
            "explain": {"instance": {"text": "a"}},
            "batchPredict": {"upload": upload, "format": "text"},
            "update": {"dataset": data.id},
            "feedback": {"instance": {"text": "a"}, "right": ["csv"]},
            "alias": {"version": 1},
            "set": {"labels": ["csv"]},
            "infer": {
                "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]
            },
        }
        for operation in NEEDS:
            method, template = operation.split(" ")
            named = [name for name in real if f"{{{name}}}" in template]
            if not named:
                continue
            path = template.replace("{version}", "1").replace("{file}", "manifest.json")
            path = path.replace("{picture}", "timeline")
            for name in named:
                path = path.replace(f"{{{name}}}", real[name])
            last = path.rsplit(":", 1)[-1] if ":" in path else path.rsplit("/", 1)[-1]
            body = bodies.get(
                last,
                bodies["alias"]
                if "/aliases/" in path
                else bodies["set"]
                if "/label-sets/" in path
                else None,
            )
            response = await app_setup.ask(
                "other",
                method,
                path,
                body=json.dumps(body or {}).encode() if method != "GET" else b"",
            )
            assert response.status == 404, (operation, response)
            assert str(tmp_path).encode() not in response.body
            cells += 1
        for body in (
            {"name": "a", "format": "jsonl", "uploads": {"train": upload}},
            {"dataset": data.id, "model": "m"},
        ):
            path = "/v1/datasets" if "uploads" in body else "/v1/jobs"
            response = await app_setup.ask("other", "POST", path, body=json.dumps(body).encode())
            assert response.status == 404, (path, response)
        for path, key in (
            ("/v1/jobs", "jobs"),
            ("/v1/datasets", "datasets"),
            ("/v1/models", "models"),
        ):
            assert json.loads((await app_setup.ask("other", "GET", path)).body)[key] == []
        return cells

    assert asyncio.run(send_requests()) >= 30
    assert app_setup.store.jobs.get(job.id).status == "PENDING"
    assert app_setup.app_state.registry_of("default").versions("docs") == [1]
    assert app_setup.app_state.registry_of("default").aliases.of("docs")["prod"] == 1
    assert app_setup.app_state.registry_of("default").label_sets("docs").get("mine").labels == (
        "csv",
    )


def test_every_changing_route_has_an_audit_action(app_setup: AppSetup) -> None:
    unsafe = {
        operation for operation in operations(app_setup.app) if operation[0] not in SAFE_METHODS
    }
    assert unsafe - set(ACTIONS) == set(), "name what it does in xcray/service/http/audit.py"
    assert set(ACTIONS) - unsafe == set()


# Path traversal (T4)

CLIMBING: Final = (
    *(
        "..",
        ".",
        "../x",
        "../../etc/passwd",
        "..\\x",
        "..\\..\\x",
        "/etc/passwd",
        "//x",
        "\\\\host\\share",
        "C:",
        "C:\\x",
    ),
    *(
        "file:///x",
        "%2e%2e%2f",
        "%252e%252e",
        "..%2fx",
        "..%5cx",
        "%00",
        "a\x00b",
        "a\x00.json",
        "a/../../x",
        "a/./b",
        "a//b",
    ),
    *(
        "~",
        "~root",
        "$HOME",
        "a.",
        "a ",
        " a",
        "a..b",
        ".hidden",
        "-rf",
        "--help",
        "CON",
        "con",
        "nul.txt",
        "aux",
        "COM1",
        "lpt9.x",
    ),
    *(
        "a:b",
        "a|b",
        "a*",
        "a?",
        "\u2025/x",
        "\uff0e\uff0e/x",
        "\u202ea",
        "a\u2028b",
        "\u0661",
        "A",
        "a" * 4096,
        "a\r\nb",
        "\x1b[31m",
    ),
    *(
        "${jndi:ldap://x}",
        "'; DROP TABLE jobs; --",
        '"',
        "{{7*7}}",
        "<script>",
        "x" * 65,
        "\ufeff",
        "\U0001f600",
    ),
)
NAMED: Final = (
    ("GET", "/v1/models/{}"),
    ("GET", "/v1/models/{}/versions/1"),
    ("PUT", "/v1/models/{}/aliases/prod"),
    ("PUT", "/v1/models/docs/aliases/{}"),
    ("PUT", "/v1/models/docs/label-sets/{}"),
    ("GET", "/v1/models/docs/label-sets/{}"),
    ("DELETE", "/v1/models/docs/label-sets/{}"),
    ("GET", "/v1/jobs/{}"),
    ("GET", "/v1/jobs/{}/logs"),
    ("DELETE", "/v1/jobs/{}"),
    ("GET", "/v1/datasets/{}"),
    ("DELETE", "/v1/datasets/{}"),
    ("DELETE", "/v1/keys/{}"),
    ("GET", "/v2/models/{}"),
    ("GET", "/static/{}"),
)
IN_BODIES: Final = (
    ("/v1/datasets", lambda name: {"name": name, "format": "pydocs"}),
    ("/v1/datasets", lambda name: {"name": "a", "format": "jsonl", "uploads": {"train": name}}),
    ("/v1/datasets", lambda name: {"name": "a", "format": "jsonl", "path": name}),
    ("/v1/datasets", lambda name: {"name": "a", "format": "jsonl", "uri": name}),
    ("/v1/jobs", lambda name: {"dataset": "ds_none", "model": name}),
    ("/v1/jobs", lambda name: {"dataset": name, "model": "a"}),
    ("/v1/models/docs:batchPredict", lambda name: {"upload": name, "format": "text"}),
    ("/v1/keys", lambda name: {"name": "n", "scopes": ["read"], "tenant": name}),
)


def test_no_name_leaves_the_home(tmp_path: Path) -> None:
    assert len(CLIMBING) >= 40
    app_setup = AppSetup(tmp_path / "home")
    publish(app_setup.app_state.registry_of("default"), "docs", tmp_path / "staged")
    before = tree(tmp_path)

    async def climb() -> None:
        for name in CLIMBING:
            for method, template in NAMED:
                body = b'{"version": 1, "labels": ["csv"]}' if method == "PUT" else b""
                response = await app_setup.ask("admin", method, template.format(name), body=body)
                assert 400 <= response.status < 500 or harmless(response, template, name), (
                    method,
                    template,
                    name,
                    response,
                )
            for path, result in IN_BODIES:
                response = await app_setup.ask(
                    "admin", "POST", path, body=json.dumps(result(name)).encode()
                )
                assert 400 <= response.status < 500, (path, name, response)
            response = await app_setup.ask(
                "admin", "GET", "/v1/jobs", query=f"tenant={name}".replace("\x00", "%00")
            )
            assert response.status < 500, (name, response)

    asyncio.run(climb())
    assert {
        path for path in tree(tmp_path) - before if not path.startswith("home/xcray.db")
    } == set()


def harmless(report: RawResponse, template: str, name: str) -> bool:
    """Return whether a successful answer comes from another route.

    Some names change the path before routing; the answer then is that of the other route.
    """
    return report.status == 200 and "/" in template.format(name).removeprefix(
        template.split("{")[0]
    )


def tree(root: Path) -> set[str]:
    """Return all files and folders below a folder."""
    return {str(path.relative_to(root)) for path in root.rglob("*")}


# Browsers (T15)


def test_other_origins_get_no_cors_headers(app_setup: AppSetup) -> None:
    async def send_requests() -> None:
        origin = {"origin": "https://page.example", "access-control-request-method": "DELETE"}
        for role in ("none", "admin"):
            response = await app_setup.ask(role, "OPTIONS", "/v1/jobs", headers=origin)
            assert response.status in (401, 405)
            assert not [name for name in response.headers if name.startswith("access-control")]
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            response = await app_setup.ask("admin", method, "/v1/jobs/job_x", headers=origin)
            assert (response.status, response.code) == (403, "ORIGIN")
        for bad in (
            "http://[",
            "null",
            "https://127.0.0.1.evil.example",
            "https://evil.example:80@127.0.0.1",
        ):
            response = await app_setup.ask(
                "admin", "DELETE", "/v1/jobs/job_x", headers={"origin": bad}
            )
            assert (response.status, response.code) == (403, "ORIGIN"), bad
        own = {"host": "LOCALHOST:1", "origin": "http://localhost:1"}
        response = await app_setup.ask("admin", "DELETE", "/v1/jobs/job_x", headers=own)
        assert (response.status, response.code) == (404, "NOT_FOUND")

    asyncio.run(send_requests())


def test_listed_origins_can_send_requests_with_a_key(own_home: Path) -> None:
    app_setup = AppSetup(own_home, cors_origins=("https://ok.example",))

    async def send_requests() -> None:
        for origin, allowed in (
            ("https://ok.example", True),
            ("https://OK.example", False),
            ("https://ok.example.evil", False),
        ):
            for expected in ("GET", "POST", "PUT", "DELETE"):
                headers = {"origin": origin, "access-control-request-method": expected}
                response = await app_setup.ask("none", "OPTIONS", "/v1/jobs", headers=headers)
                assert (response.status == 204) is allowed, (origin, response)
                assert response.headers.get("access-control-allow-origin") == (
                    origin if allowed else None
                )
                assert "access-control-allow-credentials" not in response.headers
                assert "origin" in response.headers["vary"].lower()
            response = await app_setup.ask(
                "admin", "DELETE", "/v1/jobs/job_x", headers={"origin": origin}
            )
            assert response.status == (404 if allowed else 403)
            assert (
                await app_setup.ask("none", "GET", "/v1/jobs", headers={"origin": origin})
            ).status == 401

    asyncio.run(send_requests())
    for wrong in ("*", "https://*", "ok.example", "https://ok.example/path"):
        with pytest.raises(ValueError, match="origin"):
            settings_for(own_home, cors_origins=(wrong,))


def test_every_reply_has_security_headers(own_home: Path) -> None:
    app_setup = AppSetup(own_home, behind_proxy=True)

    async def send_requests() -> None:
        for role, path in (
            ("none", "/"),
            ("none", "/v1/jobs"),
            ("admin", "/v1/jobs"),
            ("admin", "/v1/nope"),
            ("none", "/healthz"),
        ):
            headers = (await app_setup.ask(role, "GET", path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["referrer-policy"] == "no-referrer"
            assert "camera=()" in headers["permissions-policy"]
            assert headers["strict-transport-security"].startswith("max-age=")
            assert headers["cache-control"] == "no-store"
            assert re.fullmatch(r"req_[0-9a-f]{20}", headers["x-request-id"])
        for given, kept in (("abc-1", True), ("a b!", False)):
            how = {"headers": {"x-request-id": given}}
            headers = (await app_setup.ask("none", "GET", "/healthz", **how)).headers
            assert (headers["x-request-id"] == given) is kept

    asyncio.run(send_requests())
    plain = AppSetup(own_home.parent / "plain")
    assert (
        "strict-transport-security" not in asyncio.run(plain.ask("none", "GET", "/healthz")).headers
    )


def test_keys_in_urls_are_refused(app_setup: AppSetup) -> None:
    async def send_requests() -> None:
        for name in ("token", "key", "api_key", "access_token"):
            response = await app_setup.ask(
                "none", "GET", "/v1/jobs", query=f"{name}={app_setup.tokens['admin']}"
            )
            assert (response.status, response.code) == (400, "KEY_IN_URL")
            assert app_setup.tokens["admin"].encode() not in response.body
        assert (
            await app_setup.ask("admin", "GET", "/v1/jobs", query="page_token=x")
        ).code != "KEY_IN_URL"

    asyncio.run(send_requests())


def test_requests_without_a_valid_key_get_few_details(app_setup: AppSetup) -> None:
    app_setup.app.state.authenticate._clock = Clock()  # a key that was used stays in the cache

    async def send_requests() -> None:
        await app_setup.ask("admin", "GET", "/v1/jobs")
        for role, version in (("none", False), ("admin", True), ("revoked", False)):
            assert (
                json.loads((await app_setup.ask(role, "GET", "/healthz")).body)["version"]
                is not None
            ) is version
        app_setup.app_state.draining = True
        assert json.loads((await app_setup.ask("admin", "GET", "/readyz")).body)["reasons"]
        assert json.loads((await app_setup.ask("none", "GET", "/readyz")).body)["reasons"] == []

    asyncio.run(send_requests())


# Logs and replies (T13, T16)

HOSTILE: Final = (
    "\r\nX-Evil: 1",
    "\n{}",
    "\x1b[31mred",
    "a\u2028b\u2029c",
    "${jndi:ldap://x}",
    "x" * 1_000_000,
    "\x00",
    "\u202e",
    '"}',
)


def test_each_log_event_is_one_readable_line(app_setup: AppSetup) -> None:
    stream = io.StringIO()
    configure_logging(stream, "info")

    async def send_requests() -> int:
        for text in HOSTILE:
            await app_setup.ask("admin", "GET", f"/v1/models/{text}")
            await app_setup.ask(
                "none",
                "GET",
                f"/{text}",
                raw=[
                    (b"x-request-id", text.encode()[:5000]),
                    (b"user-agent", text.encode()[:5000]),
                ],
            )
        return 2 * len(HOSTILE)

    try:
        count = asyncio.run(send_requests())
    finally:
        configure_logging(None, "warning")
    lines = stream.getvalue().split("\n")
    assert lines.pop() == ""
    entries = [json.loads(line) for line in lines]
    assert [entry["event"] for entry in entries].count("request") == count
    assert all(line.isascii() and line.isprintable() and len(line) < 4000 for line in lines)
    assert not any(token in stream.getvalue() for token in app_setup.tokens.values())


def test_replies_contain_no_details_of_the_server(
    app_setup: AppSetup, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError(
            f"{own_home}/xcray.db: SELECT secret FROM keys; {app_setup.tokens['admin']} {socket.gethostname()}"
        )

    monkeypatch.setattr(app_setup.store.jobs, "get", broken)
    secrets = [
        str(own_home),
        "SELECT",
        "Traceback",
        "RuntimeError",
        "sqlite",
        'File "',
        *app_setup.tokens.values(),
    ]
    # Word boundaries: a short host name also occurs in random ids.
    host = re.compile(rf"\b{re.escape(socket.gethostname())}\b")

    async def send_requests() -> None:
        response = await app_setup.ask("admin", "GET", "/v1/jobs/job_x")
        assert (response.status, response.code) == (500, "INTERNAL")
        replies = [response]
        for operation in NEEDS:
            method, template = operation.split(" ")
            if template in ("/", "/docs", "/metrics", "/openapi.json", "/static/{name}"):
                continue
            bodies = (b"",) if method == "GET" else (b"{", b"[]", b"\xff", b"{}")
            replies += [
                await app_setup.ask("admin", method, filled(template, "none"), body=body)
                for body in bodies
            ]
        for reply in replies:
            text = reply.body.decode() + json.dumps(reply.headers)
            assert not [secret for secret in secrets if secret in text], text[:300]
            assert not host.search(text), text[:300]
            assert "server" not in reply.headers

    asyncio.run(send_requests())
