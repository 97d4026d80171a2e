"""Which processes share a home: on the embedded store one that answers and one that runs jobs, on a shared store any number.

HOME/serve.lock and HOME/runner.lock are held while the process lives, and fall free when it dies. HOME/serve.json and
HOME/runner.json tell where it is; processes beside the first one write files of their own: nobody overwrites what another says.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from xcray.errors import Conflict
from xcray.jobs.home import Home
from xcray.service.settings import Settings
from xcray.system.processes import host_name

Role: TypeAlias = Literal["serve", "runner"]
ROLES: Final[dict[Role, str]] = {
    "serve": "xcray serve",
    "runner": "xcray runner, or xcray serve without --no-runner,",
}


class Place(NamedTuple):
    """What a process has of a home: `facts` is its file that says where it is, `name` distinguishes it from others."""

    facts: Path
    name: str

    @property
    def metrics(self) -> Path:
        """The folder of its workers' figures."""
        return self.facts.with_name(self.name.replace("serve", "metrics", 1))


@contextlib.contextmanager
def take_place(settings: Settings, home: Home, role: Role) -> Iterator[Place]:
    """Have a role in a home until the block ends. Raises Conflict HOME_IN_USE when it is taken and the store is a file, for
    then a second process would be on its own clock and its own host sooner or later."""
    with open(home.path / f"{role}.lock", "a") as lock:
        name: str = role
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not settings.shares_store:
                there = f"another {ROLES[role]} holds the home {home.path}"
                mend = "or another --home; several of them need a shared store, as XCRAY_STORE=postgresql://..."
                raise Conflict(
                    f"{there}: use that one ({_told(home, role)}), {mend}", code="HOME_IN_USE"
                ) from None
            name = f"{role}-{host_name()}-{os.getpid()}"
        place = Place(home.path / f"{name}.json", name)
        try:
            yield place
        finally:
            place.facts.unlink(missing_ok=True)


def _told(home: Home, role: Role) -> str:
    """What the one that is there says of itself, for people."""
    for name in (role, "serve"):
        path = home.path / f"{name}.json"
        if path.is_file():
            return path.read_text().strip().replace("\n", " ")
    return "it has not said where yet"
