"""The folder of an embedded service: where everything of one xcray lies. Readable by its owner only."""

from __future__ import annotations

import os
import re
from pathlib import Path

from xcray.errors import ParameterError, Unavailable
from xcray.storage.atomic import check_name

DEFAULT_TENANT = "default"
ID = re.compile(r"[a-z]{1,8}_[a-z0-9]{1,40}")


class Home:
    """Paths below one folder, made with mode 0700 on first use.

    xcray.db  datasets/  models/  tenants/TENANT/models/  runs/JOB_ID/  logs/JOB_ID.log  ray/
    Raises Unavailable where it can't be made, or is not ours to write.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        try:
            for folder in (self.path, self.datasets, self.models, self.runs, self.logs, self.ray):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            mend = "name a folder that is yours: --home DIR, or XCRAY_HOME=DIR"
            raise Unavailable(
                f"{self.path} can't be the home: {error.strerror}", code="HOME", hint=mend
            ) from None
        if (
            self.path.stat().st_uid == os.getuid()
        ):  # the root of a mounted volume is another's, and its rights are the operator's
            self.path.chmod(0o700)

    @property
    def store_url(self) -> str:
        """The address of the embedded store."""
        return store_in(self.path)

    @property
    def datasets(self) -> Path:
        """Data sets, one folder an id."""
        return self.path / "datasets"

    @property
    def models(self) -> Path:
        """The root of the model registry."""
        return self.path / "models"

    def models_of(self, tenant: str) -> Path:
        """The root of a tenant's models: `models` for the tenant default, else tenants/TENANT/models. Raises ParameterError."""
        return (
            self.models
            if tenant == DEFAULT_TENANT
            else self.path / "tenants" / check_name(tenant, "tenant") / "models"
        )

    @property
    def runs(self) -> Path:
        """What running jobs keep: finished parts, so that a resumed job does the rest."""
        return self.path / "runs"

    @property
    def logs(self) -> Path:
        """Logs of runners."""
        return self.path / "logs"

    @property
    def ray(self) -> Path:
        """What is known of xcray's own local Ray."""
        return self.path / "ray"

    def run(self, job_id: str) -> Path:
        """The folder of a job's finished parts."""
        return self.runs / check_id(job_id)

    def log(self, job_id: str) -> Path:
        """The log of a job, all its attempts."""
        return self.logs / f"{check_id(job_id)}.log"

    def dataset(self, dataset_id: str) -> Path:
        """The folder of a data set."""
        return self.datasets / check_id(dataset_id)


def store_in(folder: Path) -> str:
    """The address of the store that lies in a home's folder."""
    return f"sqlite:///{folder.absolute() / 'xcray.db'}"


def check_id(value: str) -> str:
    """`value` when it looks like an id that the server makes; ParameterError otherwise. Paths come from ids only."""
    if not ID.fullmatch(value):
        raise ParameterError(f"{value[:40]!r} is not an id that the server made")
    return value
