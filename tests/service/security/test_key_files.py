"""Keys created elsewhere, such as a Kubernetes Secret: import by hash, and rotation with grace."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_service import client_of, settings_for
from xcray.cli.main import main
from xcray.errors import ParameterError
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.tokens import (
    TOKEN_PATTERN,
    create_token,
    import_token,
    parse_token,
    secret_digest,
)
from xcray.service.app import create_app


def sprig(seed: int) -> str:
    """Return a token as Helm makes it.

    The template is `printf "xck_%s_%s" (randAlpha 20 | lower) (randAlphaNum 43)`.
    """
    draw = random.Random(seed)
    letters = "".join(draw.choices(string.ascii_letters, k=20)).lower()
    return f"xck_{letters}_{''.join(draw.choices(string.ascii_letters + string.digits, k=43))}"


def test_tokens_made_by_helm_are_valid_keys() -> None:
    assert 43 * 5.954 >= 256  # bits of 43 characters out of 62
    for seed in range(2000):
        token = sprig(seed)
        credential = import_token(f"{token}\n")
        assert parse_token(token) == (credential.key_id, credential.digest)
        assert credential.token == token
    assert all(import_token(each.token) == each for each in (create_token() for _ in range(2000)))


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "a" * 43,
        "ab" * 21 + "a",
        (string.ascii_letters + string.digits)[:43],
        (string.digits + string.ascii_uppercase + string.ascii_lowercase)[::-1][:43],
        "changeme" * 5 + "abc",
        "S3cret" * 7 + "x",
        "correct-horse-battery-staple",
        sprig(1)[-43:-1],
        sprig(1)[-43:] + "a",
        "\u0660" * 43,
    ],
)
def test_weak_secrets_are_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(ParameterError) as caught:
        import_token(f"xck_{'a' * 20}_{secret}")
    assert caught.value.code == "SECRET"
    assert len(secret) < 3 or secret not in str(caught.value)


class KeyFileSetup:
    """A new store and files with secrets."""

    def __init__(self, url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self.folder = folder
        self.capsys = capsys

    def file(self, token: str, name: str = "key") -> Path:
        """Write a secret to a file, as Kubernetes mounts it."""
        path = self.folder / name
        path.write_text(token)
        return path

    def create(
        self, token: str, *more: str, code: int = 0, name: str = "bootstrap"
    ) -> dict[str, object]:
        """Run the command of the hook and return its output, which must not contain the secret."""
        how = ["--name", name, "--secret-file", str(self.file(token)), "--json", *more]
        assert main(["keys", "create", "--scopes", "admin", *how]) == code
        output = self.capsys.readouterr()
        assert token.rpartition("_")[2] not in output.out + output.err
        return json.loads(output.err if code else output.out)  # type: ignore[no-any-return]

    def store(self) -> JobStore:
        """Open the store."""
        return JobStore(self.url)


@pytest.fixture
def setup(
    store_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[KeyFileSetup]:
    monkeypatch.setenv("XCRAY_STORE", store_url)
    monkeypatch.setenv("XCRAY_STORE_UPGRADE", "false")  # as in the pods of the chart
    # The hook has no home and needs none.
    monkeypatch.setenv("XCRAY_HOME", str(tmp_path / "read" / "only"))
    assert main(["store", "upgrade"]) == 0
    capsys.readouterr()
    yield KeyFileSetup(store_url, tmp_path, capsys)
    assert not (tmp_path / "read").exists()


def test_a_hook_imports_the_key_of_a_secret_into_a_new_store_once(
    setup: KeyFileSetup,
) -> None:
    token = sprig(7)
    first = setup.create(token, "--if-absent")
    again = setup.create(token, "--if-absent")
    assert (first["new"], again["new"]) == (True, False)
    assert first["id"] == again["id"] == f"key_{token[4:24]}"
    assert "key" not in first
    store = setup.store()
    assert [key.digest for key in store.keys.list_all()] == [secret_digest(token[25:])]
    assert [
        (entry.action, entry.subject, entry.detail["by"]) for entry in store.audit.list_page()[0]
    ] == [("key.create", first["id"], "command line")]
    assert token[25:] not in str(store.audit.list_page())
    store.close()
    assert setup.create(token, code=1)["code"] == "KEY_TAKEN"
    # the same id with another secret
    assert setup.create(token[:25] + sprig(8)[25:], "--if-absent", code=1)["code"] == "KEY_TAKEN"


def test_a_revoked_key_stays_revoked_when_the_hook_runs_again(setup: KeyFileSetup) -> None:
    key_id = str(setup.create(sprig(7), "--if-absent")["id"])
    assert main(["keys", "revoke", key_id]) == 0
    setup.capsys.readouterr()
    how = f"--scopes admin --name bootstrap --secret-file {setup.file(sprig(7))} --if-absent"
    assert main(["keys", "create", *how.split()]) == 0
    assert "is not changed" in setup.capsys.readouterr().err
    store = setup.store()
    assert store.keys.list_all()[0].revoked is not None
    assert [entry.action for entry in store.audit.list_page()[0]] == ["key.revoke", "key.create"]
    store.close()


def test_the_hook_does_not_change_a_store_that_was_not_upgraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XCRAY_STORE_UPGRADE", "false")
    file = tmp_path / "key"
    file.write_text(sprig(1))
    create = f"keys create --scopes admin --secret-file {file} --home {tmp_path}/h --json"
    assert main(create.split()) == 1
    assert json.loads(capsys.readouterr().err)["code"] == "SCHEMA_OLDER"


def test_rotation_by_file_expires_older_keys_of_the_same_name_only(
    setup: KeyFileSetup,
) -> None:
    old = setup.create(sprig(1), "--if-absent", "--older-expire", "24h")
    other = setup.create(sprig(2), name="ci")
    new = setup.create(sprig(3), "--if-absent", "--older-expire", "24h")
    assert (old["retired"], new["retired"]) == ([], [old["id"]])
    store = setup.store()
    ends = {key.id: key.expires for key in store.keys.list_all()}
    assert ends[str(other["id"])] is ends[str(new["id"])] is None
    assert ends[str(old["id"])] is not None
    store.close()
    # The hook runs again: the grace period is not extended.
    assert setup.create(sprig(3), "--if-absent", "--older-expire", "48h")["retired"] == []
    # An older key never ends a newer one.
    assert setup.create(sprig(1), "--if-absent", "--older-expire", "1s")["retired"] == []
    store = setup.store()
    assert {key.id: key.expires for key in store.keys.list_all()} == ends
    assert [entry.action for entry in store.audit.list_page()[0]].count("key.retire") == 1
    store.close()


def test_a_revoked_key_does_not_expire_others(setup: KeyFileSetup) -> None:
    first = setup.create(sprig(1))
    dead = setup.create(sprig(2))
    assert main(["keys", "revoke", str(dead["id"])]) == 0
    setup.capsys.readouterr()
    assert setup.create(sprig(2), "--if-absent", "--older-expire", "1h")["retired"] == []
    store = setup.store()
    assert next(key.expires for key in store.keys.list_all() if key.id == first["id"]) is None
    store.close()


def test_a_key_stored_under_another_name_expires_no_keys(setup: KeyFileSetup) -> None:
    """Two releases share a store and used one name for their keys.

    Neither may end the other's key.
    """
    first = setup.create(sprig(1), "--if-absent", name="chart")
    setup.create(sprig(2), "--if-absent", name="chart")
    assert (
        setup.create(sprig(2), "--if-absent", "--older-expire", "1h", name="chart ml/two")[
            "retired"
        ]
        == []
    )
    store = setup.store()
    assert {key.expires for key in store.keys.list_all()} == {None}
    store.close()
    third = setup.create(sprig(3), "--if-absent", "--older-expire", "1h", name="chart ml/two")
    # The older keys have another name: an operator must revoke them.
    assert (third["new"], third["retired"]) == (
        True,
        [],
    )
    assert (
        setup.create(sprig(4), "--if-absent", "--older-expire", "1h", name="chart")["retired"][0]
        == first["id"]
    )


def test_a_service_accepts_both_keys_during_the_grace_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = [sprig(1), sprig(2)]
    home = tmp_path / "home"
    monkeypatch.setenv("XCRAY_HOME", str(home))
    for token in tokens:
        file = tmp_path / "key"
        file.write_text(token)
        create = f"keys create --scopes read --name app --secret-file {file} --if-absent"
        assert main([*create.split(), "--older-expire", "1h"]) == 0

    def status(token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return http.get("/v1/jobs", headers=headers).status_code

    with client_of(create_app(settings_for(home))) as http:
        assert [status(token) for token in (*tokens, sprig(3))] == [200, 200, 401]
        store = JobStore(f"sqlite:///{home / 'xcray.db'}")
        store.keys.retire([f"key_{tokens[0][4:24]}"], 0.0)  # the grace period is over
        store.close()
    with client_of(create_app(settings_for(home))) as http:
        assert [status(token) for token in tokens] == [401, 200]


def test_a_secret_is_created_without_a_store_and_readable_by_its_owner_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "secret"]) == 0
    assert TOKEN_PATTERN.fullmatch(capsys.readouterr().out.strip())
    file = tmp_path / "key"
    assert main(["keys", "secret", str(file)]) == 0
    output = capsys.readouterr()
    assert file.stat().st_mode & 0o777 == 0o600
    assert import_token(file.read_text()).token[25:] not in output.out + output.err
    before = file.read_text()
    assert main(["keys", "secret", str(file)]) == 1
    assert file.read_text() == before
    assert (
        main(["keys", "create", "--scopes", "read", "--secret-file", str(tmp_path / "none")]) != 0
    )
    assert main(["keys", "create", "--scopes", "read", "--if-absent"]) != 0


def test_a_key_can_be_revoked_with_a_grace_period(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--home", str(tmp_path / "h"), "--json"]
    assert main(["keys", "create", "--scopes", "read", *at]) == 0
    key_id = json.loads(capsys.readouterr().out)["id"]
    assert main(["keys", "revoke", key_id, "--after", "1h", *at]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["revoked"] is None
    assert first["expires"] is not None
    assert main(["keys", "revoke", key_id, "--after", "2h", *at]) == 0
    # The end is not moved to a later time.
    assert json.loads(capsys.readouterr().out)["expires"] == first["expires"]
    assert main(["keys", "revoke", "key_none", "--after", "2h", *at]) == 2
