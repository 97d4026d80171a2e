"""The registries of models, one a tenant."""

from __future__ import annotations

from typing import Final

from xcray.jobs.home import DEFAULT_TENANT, Home
from xcray.model.registry import Registry
from xcray.storage.atomic import NAME

MOST: Final = 4096  # tenants that are remembered


class Registries:
    """Finds a tenant's registry; a tenant that has published nothing has an empty one."""

    def __init__(self, home: Home, default: Registry | None = None) -> None:
        """default: the registry of the tenant default; the home's when not given."""
        self._home = home
        self._default = default or Registry(home.models_of(DEFAULT_TENANT))
        self._tenants = home.path / "tenants"
        self._known: dict[str, Registry] = {}

    def tenants(self) -> list[str]:
        """All tenants that may have models."""
        others = (
            [path.name for path in self._tenants.iterdir() if NAME.fullmatch(path.name)]
            if self._tenants.is_dir()
            else []
        )
        return [DEFAULT_TENANT, *sorted(others)]

    def of(self, tenant: str) -> Registry:
        """The registry of a tenant. Raises ParameterError for a name that can't be one."""
        if tenant == DEFAULT_TENANT:
            return self._default
        found = self._known.get(tenant)
        if found is None:
            found = Registry(self._home.models_of(tenant))
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[tenant] = found
        return found
