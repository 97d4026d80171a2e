"""The home: the directory in which an embedded service keeps its files (owner-only access)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from xcray.errors import ParameterError, Unavailable
from xcray.storage.atomic import NAME_PATTERN, check_name

# The store's URL if it holds a password, because command lines are visible to everybody.
STORE_VARIABLE: Final = "XCRAY_STORE"
STORE_FILE: Final = "xcray.db"
DEFAULT_TENANT = "default"
ID_PATTERN = re.compile(r"[a-z]{1,8}_[a-z0-9]{1,40}")


def unusable_home(path: str | os.PathLike[str], error: OSError) -> Unavailable:
    """Return the error of a home that cannot be created, read or written."""
    hint = "choose a folder that you own: --home DIR, or XCRAY_HOME=DIR"
    return Unavailable(f"{path} can't be the home: {error.strerror}", code="HOME", hint=hint)


class Home:
    """Paths below one directory, which are created with mode 0700 on first use.

      xcray.db  datasets/  models/  tenants/TENANT/models/  runs/JOB_ID/  logs/JOB_ID.log  ray/

    Raises Unavailable if the directory cannot be created or written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        try:
            for folder in (self.path, self.datasets, self.models, self.runs, self.logs, self.ray):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise unusable_home(self.path, error) from None
        # The root of a mounted volume can belong to another user. Its mode is the operator's
        # decision.
        if self.path.stat().st_uid == os.getuid():
            self.path.chmod(0o700)

    @property
    def store_url(self) -> str:
        """The URL of the embedded store."""
        return store_url_in(self.path)

    @property
    def datasets(self) -> Path:
        """The directory of data sets, with one directory per id."""
        return self.path / "datasets"

    @property
    def models(self) -> Path:
        """The root of the model registry."""
        return self.path / "models"

    def tenants(self) -> list[str]:
        """Return all tenants that can have models, `default` first."""
        folders = (self.path / "tenants").glob("*")
        names = {path.name for path in folders if NAME_PATTERN.fullmatch(path.name)}
        return [DEFAULT_TENANT, *sorted(names - {DEFAULT_TENANT})]

    def models_of(self, tenant: str) -> Path:
        """Return the root of a tenant's models. Raises ParameterError if the name is invalid.

        It is `models` for the tenant default, else tenants/TENANT/models.
        """
        return (
            self.models
            if tenant == DEFAULT_TENANT
            else self.path / "tenants" / check_name(tenant, "tenant") / "models"
        )

    @property
    def runs(self) -> Path:
        """The directory of finished parts per job, from which a resumed job continues."""
        return self.path / "runs"

    @property
    def logs(self) -> Path:
        """The directory of the runners' logs."""
        return self.path / "logs"

    @property
    def ray(self) -> Path:
        """The directory with the state of xcray's own local Ray."""
        return self.path / "ray"

    def run(self, job_id: str) -> Path:
        """Return the directory of a job's finished parts."""
        return self.runs / check_id(job_id)

    def log(self, job_id: str) -> Path:
        """Return the path of a job's log, which all its attempts share."""
        return self.logs / f"{check_id(job_id)}.log"

    def dataset(self, dataset_id: str) -> Path:
        """Return the directory of a data set."""
        return self.datasets / check_id(dataset_id)


def store_url_in(folder: Path) -> str:
    """Return the URL of the store in a home directory."""
    return f"sqlite:///{folder.absolute() / STORE_FILE}"


def check_id(value: str) -> str:
    """Return `value` if it has the form of a server-made id. Raises ParameterError if not.

    Paths are built from checked ids only.
    """
    if not ID_PATTERN.fullmatch(value):
        raise ParameterError(f"{value[:40]!r} is not an id that the server made")
    return value
