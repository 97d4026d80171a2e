"""Role locks of a home.

On the embedded store one process serves requests and one runs jobs; on a shared store any number
can. HOME/serve.lock and HOME/runner.lock are held while the process lives and are released when it
dies. HOME/serve.json and HOME/runner.json contain its address. Further processes write files with
names of their own, so no process overwrites another's file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from xcray.errors import Conflict
from xcray.jobs.home import Home
from xcray.service.settings import Settings
from xcray.system.file_lock import try_lock
from xcray.system.processes import host_name

Role: TypeAlias = Literal["serve", "runner"]
ROLE_COMMANDS: Final[dict[Role, str]] = {
    "serve": "xcray serve",
    "runner": "xcray runner, or xcray serve without --no-runner,",
}


class RoleLock(NamedTuple):
    """Role of a process in a home.

    info_path: its file with address and process id. name: distinguishes it from other processes.
    """

    info_path: Path
    name: str

    @property
    def metrics_dir(self) -> Path:
        """Return the folder for the metrics of its workers."""
        return self.info_path.with_name(self.name.replace("serve", "metrics", 1))


@contextlib.contextmanager
def acquire_role(settings: Settings, home: Home, role: Role) -> Iterator[RoleLock]:
    """Hold a role in a home until the block ends.

    Raises Conflict HOME_IN_USE if the role is taken and the store is a file, which only one process
    can use safely.
    """
    with open(home.path / f"{role}.lock", "a") as lock:
        name: str = role
        if not try_lock(lock):
            if not settings.has_shared_store:
                raise Conflict(
                    f"another {ROLE_COMMANDS[role]} holds the home {home.path}: use that one "
                    f"({_describe_holder(home, role)}), or another --home; several processes need "
                    "a shared store, such as XCRAY_STORE=postgresql://...",
                    code="HOME_IN_USE",
                )
            name = f"{role}-{host_name()}-{os.getpid()}"
        role_lock = RoleLock(home.path / f"{name}.json", name)
        try:
            yield role_lock
        finally:
            role_lock.info_path.unlink(missing_ok=True)


def _describe_holder(home: Home, role: Role) -> str:
    """Return the description that the current holder has written, for people."""
    for name in (role, "serve"):
        path = home.path / f"{name}.json"
        if path.is_file():
            return path.read_text().strip().replace("\n", " ")
    return "its address is not known yet"
