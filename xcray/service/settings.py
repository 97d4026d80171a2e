"""Settings of operators: environment variables XCRAY_..., or options of `xcray serve`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from xcray.errors import ParameterError
from xcray.jobs.home import store_url_in
from xcray.service.constants import GB, MB
from xcray.system.cores import available_cores
from xcray.system.user_directories import default_home

PREFIX = re.compile(r"https?://[a-z0-9.-]{1,253}(:[0-9]{1,5})?/[!$&'()*+,./0-9:;=A-Za-z_~-]*")
# Segments without `.` and `..`; the first is not one of the paths of the service itself.
ROOT_PATH = re.compile(
    r"(?!/(?:v1|v2|static)(?:/|$))(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]{1,64}){1,16}"
)
ORIGIN = re.compile(r"https?://[a-z0-9.-]{1,253}(:[0-9]{1,5})?")


class Settings(BaseSettings):
    """All settings of the service. Unset ones are read from XCRAY_<NAME>, or have a default."""

    model_config = SettingsConfigDict(
        env_prefix="XCRAY_", env_ignore_empty=True, extra="forbid", frozen=True
    )

    home: Path = Field(default_factory=default_home, description="Folder of an embedded service.")
    store: str | None = Field(
        None,
        description=(
            "URL of the job store, such as postgresql://...; default: a file in the home."
        ),
    )
    store_upgrade: bool = Field(
        True,
        description=(
            "Upgrade an older job store at the start; if false, run `xcray store upgrade`."
        ),
    )
    host: str = Field(
        "127.0.0.1",
        description="Address to listen on; `xcray runner` serves health and metrics on it.",
    )
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 selects a free port.")
    insecure_dev: bool = Field(
        False, description="Listen on a public address without keys. For closed networks only."
    )
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description=(
            "Host names that requests can use, in addition to the local names and `host`."
        ),
    )
    tls_certfile: Path | None = Field(None, description="File with the TLS certificate chain.")
    tls_keyfile: Path | None = Field(
        None, description="File with the private key of that certificate."
    )
    behind_proxy: bool = Field(
        False,
        description=(
            "Whether all requests come through a proxy that terminates TLS; its "
            "X-Forwarded-Prefix is then trusted."
        ),
    )
    root_path: str = Field(
        "",
        description=(
            "Path prefix of the service at a proxy, such as /ml; the proxy can remove it or not."
        ),
    )
    cors_origins: tuple[str, ...] = Field(
        (), description="Origins whose pages can use the API, such as https://name."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Minimum level of log lines."
    )
    log_format: Literal["json", "text"] = Field(
        "json", description="Format of log lines: json, or text for people."
    )
    preload: tuple[str, ...] = Field(
        (), description="Models of the default tenant that are loaded before the service is ready."
    )
    shards: tuple[str, ...] = Field(
        (),
        description=(
            "Addresses of the services of a model in shards, in order; or one for all of them."
        ),
    )
    shards_key_path: Path | None = Field(
        None, description="File with the API key for these services; it needs the scope predict."
    )
    shards_partial: bool = Field(
        False,
        description=(
            "Whether the others answer, with a warning, while a shard does not; otherwise 503."
        ),
    )

    pool: Literal["serial", "threads", "ray"] = Field(
        "threads", description="Pool of jobs that do not set one."
    )
    ray_address: str | None = Field(
        None,
        description="Address of an existing Ray cluster; if unset, pool=ray starts a local Ray.",
    )
    ray_dashboard: str = Field(
        "http://127.0.0.1:8265",
        description="URL of the dashboard of that Ray cluster, to which jobs are submitted.",
    )
    ray_token_path: Path | None = Field(
        None, description="File with the authentication token of that Ray cluster."
    )
    max_running_jobs: int = Field(1, ge=1, le=1000, description="Maximum number of running jobs.")
    max_running_of_tenant: int | None = Field(
        None,
        ge=1,
        description="Maximum number of running jobs of a tenant; keys can have a lower limit.",
    )
    max_attempts: int = Field(
        3,
        ge=1,
        le=100,
        description="Attempts of a job before it is FAILED, unless the job sets its own limit.",
    )
    lease_seconds: float = Field(
        20.0,
        ge=2,
        le=3600,
        description="Seconds without a heartbeat after which a runner or a leader is replaced.",
    )
    runner_port: int = Field(
        0, ge=0, le=65535, description="Port of `xcray runner`; 0 selects a free port."
    )
    keep_jobs_days: float = Field(
        30.0, gt=0, description="Days after which an ended job and its log are deleted."
    )
    job_nice: int = Field(
        10,
        ge=0,
        le=19,
        description=(
            "Niceness of trainings and batch predictions on this machine, so that "
            "online predictions have priority."
        ),
    )
    dataset_roots: tuple[Path, ...] = Field(
        (), description="Server folders from which data sets can be built."
    )

    predict_body_bytes: int = Field(
        10 * MB, ge=1000, description="Maximum body size of a predict or explain request."
    )
    upload_bytes: int = Field(20 * GB, ge=1, description="Maximum size of an upload.")
    tenant_datasets: int = Field(
        10_000, ge=0, description="Maximum number of data sets of a tenant."
    )
    tenant_feedback: int = Field(
        10_000, ge=0, description="Maximum number of feedback entries of a tenant."
    )
    dataset_uris: tuple[str, ...] = Field(
        (), description="URI prefixes from which data sets can be fetched."
    )
    dataset_uris_private: bool = Field(
        False, description="Whether hosts of these URIs can have private addresses."
    )
    max_instances: int = Field(
        1024,
        ge=1,
        description="Maximum number of instances of a predict request; twice as many can wait.",
    )
    max_top_k: int = Field(
        1000, ge=1, description="Maximum top_k; it is clipped to the number of labels."
    )
    max_body_memory_bytes: int = Field(
        256 * MB,
        ge=1000,
        description="Maximum memory of all request bodies in a process, received and decoded.",
    )
    connections: int = Field(2000, ge=1, description="Maximum number of connections of a process.")

    requests_per_minute: int = Field(
        600_000,
        ge=0,
        description="Requests per minute of a key, or of an address without keys; 0: unlimited.",
    )
    instances_per_minute: int = Field(
        0,
        ge=0,
        description=("Instances per minute of a key, or of an address without keys; 0: unlimited."),
    )
    max_concurrent_requests: int = Field(
        1024,
        ge=1,
        description=(
            "Maximum number of concurrent requests of a key, or of an address without keys."
        ),
    )
    public_docs: bool = Field(
        False,
        description=(
            "Whether /openapi.json, which /docs shows, needs no key; otherwise the "
            "scope admin, if there are keys."
        ),
    )
    public_metrics: bool = Field(
        False,
        description=(
            "Whether /metrics needs no key; otherwise the scope metrics, if there are keys."
        ),
    )

    build_memory_bytes: int = Field(
        8 * GB, ge=GB, description="Address space limit of a process that builds a data set."
    )
    build_seconds: int = Field(
        3600, ge=1, description="CPU time limit of a process that builds a data set, in seconds."
    )
    models_loaded: int = Field(4, ge=1, description="Maximum number of models in memory.")
    processes: int = Field(
        1,
        ge=1,
        le=256,
        description="Number of processes that serve requests.",
    )

    drain_seconds: float = Field(
        0.0,
        ge=0,
        description=(
            "Seconds between SIGTERM, when readiness fails, and the closing of connections."
        ),
    )
    grace_seconds: int = Field(30, ge=1, description="Seconds after that for requests in progress.")

    @property
    def store_url(self) -> str:
        """Return the URL of the job store; it can contain a password."""
        return self.store or store_url_in(self.home)

    @property
    def has_shared_store(self) -> bool:
        """Return whether processes on several hosts can use the store (not a file)."""
        return not self.store_url.startswith("sqlite")

    @field_validator("dataset_uris")
    @classmethod
    def _prefixes(cls, prefixes: tuple[str, ...]) -> tuple[str, ...]:
        """Check that prefixes contain a full host: https://host also matches https://host.evil."""
        for prefix in prefixes:
            if not PREFIX.fullmatch(prefix):
                raise ValueError(
                    f"{prefix[:80]!r} is not a URI prefix: "
                    "write https://host/ or https://host/folder/"
                )
        return prefixes

    @field_validator("root_path")
    @classmethod
    def _root_path(cls, prefix: str) -> str:
        """Check a path prefix. A slash at its end is removed."""
        prefix = prefix.rstrip("/")
        if prefix and not ROOT_PATH.fullmatch(prefix):
            raise ValueError(
                f"{prefix[:80]!r} is not a path prefix: write one like /ml; "
                "/v1, /v2 and /static are paths of the service"
            )
        return prefix

    @field_validator("cors_origins", "shards")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """Check that addresses are spelled as in browsers; `*` would admit every page."""
        for origin in origins:
            if not ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin[:80]!r} is not an origin: "
                    "write https://name or https://name:port, never *"
                )
        return origins

    @property
    def admits_everyone(self) -> bool:
        """Return whether callers without a key are admitted while no key exists.

        This holds on a loopback address, or with insecure_dev.
        """
        return self.insecure_dev or _is_loopback(self.host)

    @property
    def prediction_threads(self) -> int:
        """Return the number of prediction threads per process."""
        return max(1, available_cores() // self.processes)

    @property
    def served_hosts(self) -> frozenset[str]:
        """Return the accepted host names, in lower case and without port; `*` accepts any."""
        named = {
            "localhost",
            "127.0.0.1",
            "::1",
            self.host.lower(),
            *(name.lower() for name in self.allowed_hosts),
        }
        return frozenset(named | {"*"} if self.insecure_dev else named)


def check_address(settings: Settings, has_keys: Callable[[], bool] = lambda: False) -> None:
    """Refuse an address where others could reach the service without a key, or read keys.

    has_keys: whether the store has a key. Raises ParameterError with code PUBLIC_ADDRESS,
    PLAIN_HTTP or TLS, and with the fix.
    """
    if (settings.tls_certfile is None) != (settings.tls_keyfile is None):
        raise ParameterError(
            "TLS needs two files: set XCRAY_TLS_CERTFILE and XCRAY_TLS_KEYFILE", code="TLS"
        )
    if settings.insecure_dev or _is_loopback(settings.host):
        return
    if not has_keys():
        raise ParameterError(
            f"refusing to listen on {settings.host}: "
            "everyone who reaches it could train, read and delete without a key. "
            "Create a key first (xcray keys create --scopes admin), use --host 127.0.0.1, "
            "or --insecure-dev if the network is closed",
            code="PUBLIC_ADDRESS",
        )
    if settings.tls_certfile is None and not settings.behind_proxy:
        raise ParameterError(
            f"refusing plain HTTP on {settings.host}: keys could be intercepted. "
            "Set XCRAY_TLS_CERTFILE and XCRAY_TLS_KEYFILE, "
            "or XCRAY_BEHIND_PROXY=1 if a proxy terminates TLS",
            code="PLAIN_HTTP",
        )


def _is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address.

    Names other than localhost count as public, because they can resolve to any address.
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
