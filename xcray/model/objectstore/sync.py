"""Synchronisation of registries with object storage.

`Mirror` uploads published models, `Follower` downloads them. Neither has state that cannot be
derived again: a version is in the storage if its manifest is, and in the registry if its directory
is. So a kill interrupts only the current transfer, which resumes on the next call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from xcray.errors import Conflict, NotFound, Stopped, XcrayError
from xcray.model.aliases import LATEST
from xcray.model.objectstore.pull import apply_aliases, plan_model
from xcray.model.objectstore.remote_registry import (
    ALIASES_FILE,
    TENANTS_FOLDER,
    encode_aliases,
    fetch_to_registry,
    has_seal,
    push,
    read_aliases,
    tenant_names,
)
from xcray.model.registry import Registry
from xcray.model.traffic_split import TrafficSplit
from xcray.storage.objectstore.client import StoragePath
from xcray.storage.objectstore.versions import (
    NO_VERSION,
    RemoteVersion,
    list_names,
    list_versions,
)

LOG: Final = logging.getLogger(__name__)


class TenantModels(NamedTuple):
    """The models of a tenant.

    tenant: None for default, whose models are at the top of a storage.
    """

    tenant: str | None
    registry: Registry

    def storage_path(self, root: StoragePath) -> StoragePath:
        """Return the folder of the models in a storage."""
        return root if self.tenant is None else root / TENANTS_FOLDER / self.tenant


class SyncResult(NamedTuple):
    """Result of one synchronisation.

    copied: versions transferred; pending: versions (Mirror) or models (Follower) that failed;
    error: the error of the first failure.
    """

    copied: int
    pending: int
    error: XcrayError | OSError | None


class Mirror:
    """Uploads each published version, and the aliases, to a storage.

    Nothing is ever deleted or overwritten there, except the list of aliases.
    """

    def __init__(
        self,
        list_tenants: Callable[[], Iterable[TenantModels]],
        root: StoragePath,
        on_pending: Callable[[int], None] = lambda behind: None,
    ) -> None:
        """Initialise. on_pending: called with the number of missing versions when it changes."""
        self._list_tenants = list_tenants
        self._root = root
        self._on_pending = on_pending
        self._uploaded: set[tuple[str | None, str, int]] = set()
        self._written_aliases: dict[tuple[str | None, str], dict[str, TrafficSplit]] = {}

    def sync(self, stop: threading.Event | None = None) -> SyncResult:
        """Upload missing versions.

        A version that fails does not block others; it is retried on the next call.
        """
        tenants = list(self._list_tenants())
        missing = [
            (models, name, number)
            for models in tenants
            for name, number in self._list_missing(models)
        ]
        copied, first_error = 0, None
        self._on_pending(len(missing))
        for models, name, number in missing:
            try:
                self._push(models, name, number, stop)
                copied += 1
                self._on_pending(len(missing) - copied)
            except Stopped:
                raise
            except (XcrayError, OSError) as error:
                LOG.warning(
                    "a model was not uploaded",
                    extra={"model": f"{name}:{number}", "detail": str(error)},
                )
                first_error = first_error or error
        for models in tenants:
            try:
                self._write_aliases(models)
            except (XcrayError, OSError) as error:
                first_error = first_error or error
        return SyncResult(copied, len(missing) - copied, first_error)

    def _list_missing(self, models: TenantModels) -> list[tuple[str, int]]:
        """Return the versions of a tenant that are not known to be uploaded."""
        published = [
            (name, number)
            for name in models.registry.names()
            for number in models.registry.versions(name)
        ]
        return [each for each in published if (models.tenant, *each) not in self._uploaded]

    def _push(
        self, models: TenantModels, name: str, number: int, stop: threading.Event | None
    ) -> None:
        """Upload one version, unless it is there already or was deleted meanwhile."""
        try:
            path = models.registry.resolve(f"{name}:{number}")
        except NotFound:
            return
        pushed = push(path, models.storage_path(self._root) / name, number, stop=stop)
        self._uploaded.add((models.tenant, name, number))
        if pushed.moved.sent:
            LOG.info(
                "a model was uploaded",
                extra={
                    "model": f"{name}:{number}",
                    "place": pushed.uri,
                    "bytes": pushed.moved.sent,
                },
            )

    def _write_aliases(self, models: TenantModels) -> None:
        """Write the aliases whose versions are uploaded."""
        for name in models.registry.names():
            splits = models.registry.aliases.splits(name)
            local = {
                alias: splits.get(alias) or TrafficSplit.single(number)
                for alias, number in models.registry.aliases.of(name).items()
            }
            del local[LATEST]
            uploaded = {
                number
                for tenant, name_of, number in self._uploaded
                if (tenant, name_of) == (models.tenant, name)
            }
            routes = {
                alias: route
                for alias, route in local.items()
                if uploaded.issuperset(route.versions)
            }
            path, key = models.storage_path(self._root) / name, (models.tenant, name)
            if key not in self._written_aliases:
                self._written_aliases[key] = read_aliases(path)
            if self._written_aliases[key] != routes:
                (path / ALIASES_FILE).write(encode_aliases(routes))
                self._written_aliases[key] = routes


class Follower:
    """Downloads the latest versions, and the versions of aliases, from a storage.

    Readers of the registry switch to them as usual. One version before the latest is kept;
    older ones that came from the storage are deleted locally.
    """

    def __init__(
        self,
        registry_of: Callable[[str | None], Registry],
        root: StoragePath,
        on_pending: Callable[[int], None] = lambda behind: None,
    ) -> None:
        """Initialise. registry_of: returns the registry of a tenant, None for default.

        on_pending: called with the number of models that failed when it changes.
        """
        self._registry_of = registry_of
        self._root = root
        self._on_pending = on_pending
        self._downloaded: set[tuple[str | None, str, int | None, str | None]] = set()
        self._followed_aliases: dict[tuple[str | None, str], set[str]] = {}

    def sync(self, stop: threading.Event | None = None) -> SyncResult:
        """Download new versions of all models once.

        A model that fails does not block others. Raises NotFound if there is no such
        storage.
        """
        copied, pending, first_error = 0, 0, None
        for tenant in (None, *tenant_names(self._root)):
            models = TenantModels(tenant, self._registry_of(tenant))
            for name in list_names(models.storage_path(self._root)):
                try:
                    copied += self._follow(models, name, stop)
                except Stopped:
                    raise
                except (XcrayError, OSError) as error:
                    LOG.warning(
                        "a model was not downloaded", extra={"model": name, "detail": str(error)}
                    )
                    pending, first_error = pending + 1, first_error or error
                    self._on_pending(pending)
        self._on_pending(pending)
        return SyncResult(copied, pending, first_error)

    def _follow(self, models: TenantModels, name: str, stop: threading.Event | None) -> int:
        """Download new versions of one model, and return their number."""
        home, n_copied = models.storage_path(self._root) / name, 0
        try:
            plan = plan_model(home)
        except NotFound as error:
            if error.code != NO_VERSION:
                raise
            return 0  # its first upload is not complete
        for remote in plan.versions:
            key = (models.tenant, name, remote.number, remote.seal)
            if key not in self._downloaded or remote.number not in models.registry.versions(name):
                n_copied += (
                    fetch_to_registry(models.registry, name, remote, stop=stop).moved is not None
                )
                self._downloaded.add(key)
        apply_aliases(models.registry, name, plan.aliases)
        for alias in self._followed_aliases.get((models.tenant, name), set()) - set(plan.aliases):
            if alias in models.registry.aliases.of(name):
                models.registry.aliases.delete(name, alias)
        self._followed_aliases[models.tenant, name] = set(plan.aliases)
        if n_copied:
            LOG.info(
                "a model was downloaded",
                extra={"model": name, "versions": [remote.number for remote in plan.versions]},
            )
            self._prune(models, name, plan.versions)
        return n_copied

    def _prune(self, models: TenantModels, name: str, needed: tuple[RemoteVersion, ...]) -> None:
        """Delete unused versions that came from the storage, except the newest of them."""
        registry, needed_numbers = models.registry, {remote.number for remote in needed}
        seals = {remote.number: remote.seal for remote in list_versions(needed[0].path.parent)}
        others = [
            number
            for number in registry.versions(name)
            if number not in needed_numbers and number in seals
        ]
        older = [
            number
            for number in others
            if has_seal(registry.resolve(f"{name}:{number}"), seals[number] or "")
        ]
        for number in older[:-1]:
            try:
                registry.delete(name, number)
            except Conflict as error:
                # an alias was just set to it
                LOG.info(
                    "a version was not deleted",
                    extra={"model": f"{name}:{number}", "detail": str(error)},
                )
