"""The model registries, one per tenant."""

from __future__ import annotations

from typing import Final

from xcray.jobs.home import DEFAULT_TENANT, Home
from xcray.model.registry import Registry

MAX_REGISTRIES: Final = 4096  # registries that are cached


class Registries:
    """Registries by tenant; a tenant that has published nothing has an empty one."""

    def __init__(self, home: Home, default: Registry | None = None) -> None:
        """Create the collection.

        default: registry of the tenant "default"; None uses the one of the home.
        """
        self._home = home
        self._default = default or Registry(home.models_of(DEFAULT_TENANT))
        self._by_tenant: dict[str, Registry] = {}

    def tenants(self) -> list[str]:
        """Return all tenants that can have models."""
        return self._home.tenants()

    def of(self, tenant: str) -> Registry:
        """Return the registry of a tenant. Raises ParameterError for an invalid tenant name."""
        if tenant == DEFAULT_TENANT:
            return self._default
        registry = self._by_tenant.get(tenant)
        if registry is None:
            registry = Registry(self._home.models_of(tenant))
            if len(self._by_tenant) >= MAX_REGISTRIES:
                self._by_tenant.clear()
            self._by_tenant[tenant] = registry
        return registry
