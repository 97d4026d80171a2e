"""What an operator may set: environment variables XCRAY_..., or arguments of `xcray serve`."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from xcray.errors import ParameterError
from xcray.jobs.home import store_in
from xcray.system.cores import cores

MB = 1_000_000
GB = 1_000_000_000
PREFIX = re.compile(r"https?://[a-z0-9.-]{1,253}(:[0-9]{1,5})?/[!$&'()*+,./0-9:;=A-Za-z_~-]*")
FOLDER = re.compile(
    r"(?:(?:s3|gs)://[A-Za-z0-9][A-Za-z0-9._-]+|file://)(?:/[^@?\s]*)?(?:\?[^@\s]*)?"
)
ORIGIN = re.compile(r"https?://[a-z0-9.-]{1,253}(:[0-9]{1,5})?")


class Settings(BaseSettings):
    """All settings of the service with their defaults; each is read from XCRAY_<NAME> when it is not given."""

    model_config = SettingsConfigDict(env_prefix="XCRAY_", extra="ignore", frozen=True)

    home: Path = Field(
        default_factory=lambda: Path.home() / ".xcray", description="Folder of an embedded service."
    )
    store: str | None = Field(
        None,
        description="URL of the job store, like postgresql://...; without one, a file in the home.",
    )
    store_upgrade: bool = Field(
        True,
        description="Upgrade an older job store at the start; if not, `xcray store upgrade` must do it.",
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    insecure_dev: bool = Field(
        False, description="Listen on a public address without keys. For closed networks only."
    )
    allowed_hosts: tuple[str, ...] = Field(
        (), description="Host names requests may use, beside the local ones and `host`."
    )
    tls_certfile: Path | None = Field(
        None, description="File with the certificate, and those above it, to speak TLS."
    )
    tls_keyfile: Path | None = Field(
        None, description="File with the private key of that certificate."
    )
    behind_proxy: bool = Field(
        False, description="Whether all requests come through a proxy that speaks TLS with clients."
    )
    cors_origins: tuple[str, ...] = Field(
        (), description="Origins whose pages may ask, like https://name; none unless listed."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level that is logged."
    )
    log_format: Literal["json", "text"] = Field(
        "json", description="Form of log lines: JSON, or text for people."
    )
    preload: tuple[str, ...] = Field(
        (), description="Models of the tenant default that are loaded before the service is ready."
    )
    models_mirror: str | None = Field(
        None,
        description="Folder of object storage, like s3://bucket/models, that published models are copied to.",
    )
    models_follow: str | None = Field(
        None,
        description="Folder of object storage whose models are brought here, as they come to be.",
    )
    models_follow_seconds: float = Field(
        30.0, ge=1, description="Seconds between two looks at that folder."
    )
    runner_silence_seconds: float = Field(
        60.0, gt=0, description="Seconds that jobs wait unseen until readiness names RUNNER."
    )

    pool: Literal["serial", "threads", "ray"] = Field(
        "threads", description="Pool of jobs that name none."
    )
    ray_address: str | None = Field(
        None, description="A running Ray to use; without one, pool=ray starts a local Ray."
    )
    ray_dashboard: str = Field(
        "http://127.0.0.1:8265", description="The dashboard of that Ray, where jobs are submitted."
    )
    ray_token_path: Path | None = Field(None, description="File with the token of that Ray.")
    max_running_jobs: int = Field(1, ge=1, le=1000, description="Jobs that run at the same time.")
    max_running_of_tenant: int | None = Field(
        None,
        ge=1,
        description="Jobs of one tenant that run at the same time; its keys can say less.",
    )
    max_attempts: int = Field(
        3,
        ge=1,
        le=100,
        description="Runners that a job may lose before it FAILED, where it does not say.",
    )
    lease_seconds: float = Field(
        20.0, ge=2, le=3600, description="Silence after which a runner, or who leads, is replaced."
    )
    stop_seconds: float = Field(
        3.0,
        gt=0,
        le=600,
        description="Time a training has to stop by itself before its process is ended.",
    )
    jobs_outlive: bool = Field(
        default_factory=lambda: os.getpid() != 1,
        description="At SIGTERM, runners on this machine go on; if not, they give their jobs back (as in a container, which ends).",
    )
    runner_host: str = Field(
        "127.0.0.1", description="Address where `xcray runner` tells its health and figures."
    )
    runner_port: int = Field(0, ge=0, le=65535, description="Port of that; 0 takes a free one.")
    keep_jobs: int = Field(
        100_000, ge=0, description="Ended jobs that are remembered; older ones are forgotten."
    )
    keep_jobs_days: float = Field(
        30.0, gt=0, description="Days after which an ended job is forgotten, with its log."
    )
    keep_runs_hours: float = Field(
        24.0, ge=0, description="Hours after which a published job's run folder is emptied."
    )
    job_log_bytes: int = Field(
        50 * MB,
        ge=10_000,
        description="Largest log of a job; of longer ones head and tail are kept.",
    )
    job_nice: int = Field(
        10,
        ge=0,
        le=19,
        description="How far trainings and batches on this machine stand back for predictions (see nice).",
    )
    dataset_roots: tuple[Path, ...] = Field(
        (), description="Folders of the server that data sets may be built from."
    )

    predict_body_bytes: int = Field(
        10 * MB, ge=1000, description="Largest body of a predict or explain request."
    )
    body_bytes: int = Field(1 * MB, ge=1000, description="Largest JSON body of other requests.")
    upload_bytes: int = Field(20 * GB, ge=1, description="Largest upload.")
    tenant_upload_bytes: int = Field(
        100 * GB, ge=0, description="Uploads of a tenant that wait for their data set, together."
    )
    tenant_datasets: int = Field(10_000, ge=0, description="Data sets of a tenant.")
    dataset_uris: tuple[str, ...] = Field(
        (), description="Prefixes of URIs that data sets may be fetched from; none unless listed."
    )
    dataset_uris_private: bool = Field(
        False, description="Whether their hosts may have addresses of a closed network."
    )
    dataset_uri_seconds: float = Field(
        300.0, gt=0, description="Longest time that fetching one file may take."
    )
    uploads_at_once: int = Field(4, ge=1, description="Uploads received at the same time.")
    disk_reserve_bytes: int = Field(
        2 * GB, ge=0, description="Free disk that uploads must leave (or 5 %, what is more)."
    )
    max_instances: int = Field(1024, ge=1, description="Instances of a predict request.")
    max_top_k: int = Field(
        1000, ge=1, description="Largest top_k; above the number of labels it is clipped to that."
    )
    header_bytes: int = Field(16_384, ge=1000, description="Largest sum of a request's headers.")
    body_seconds: float = Field(
        60.0, gt=0, description="Longest pause within a body before the request is given up."
    )
    bodies_bytes: int = Field(
        256 * MB,
        ge=1000,
        description="Bodies that a process holds in memory at the same time, together.",
    )
    connections: int = Field(2000, ge=1, description="Connections of a process at the same time.")
    head_seconds: float = Field(
        15.0, gt=0, description="Longest time until the head of a request is whole."
    )
    body_rate: int = Field(
        1000,
        ge=0,
        description="Bytes a second that a body must come with at least, over ten seconds.",
    )

    requests_per_minute: int = Field(
        600_000, ge=0, description="Of a key, or an address without keys; 0: any number."
    )
    instances_per_minute: int = Field(
        0, ge=0, description="Instances predicted for a key or an address; 0: any number."
    )
    requests_at_once: int = Field(
        1024, ge=1, description="Requests of a key, or an address without keys, at the same time."
    )
    keys_grace_seconds: float = Field(
        60.0, ge=0, description="How long keys last known as good are while the store is away."
    )
    audit_entries: int = Field(
        100_000,
        ge=1000,
        description="Entries of the audit log that are kept; older ones are forgotten.",
    )
    open_docs: bool = Field(
        False, description="Whether /docs and /openapi.json need no key; else, with keys, admin."
    )
    metrics_open: bool = Field(
        False, description="Whether /metrics needs no key; else, with keys, admin."
    )

    build_memory_bytes: int = Field(
        8 * GB, ge=GB, description="Address space of a process that builds a data set."
    )
    build_seconds: int = Field(
        3600, ge=1, description="Processor seconds of a process that builds a data set."
    )
    builds_at_once: int = Field(1, ge=1, description="Data sets built at the same time.")
    models_loaded: int = Field(4, ge=1, description="Models kept mapped at the same time.")
    swap_seconds: float = Field(
        300.0,
        ge=0,
        description="While a new version is loaded the old one answers, at most so long; then requests wait for it.",
    )
    linger_seconds: float = Field(
        10.0, ge=0, description="A version that nothing leads to any more stays mapped so long."
    )
    workers: int = Field(
        1,
        ge=1,
        le=256,
        description="Processes that answer; more than one when one core is not enough.",
    )
    predict_threads: int = Field(
        0,
        ge=0,
        description="Threads of a process for predictions that are not cheap; 0: its share of the cores.",
    )
    predict_batch_ms: float = Field(
        2.0,
        ge=0,
        le=1000,
        description="Predictions foreseen to take no longer are computed at once, and no more of it in one go.",
    )
    predict_rows: int = Field(
        2048,
        ge=1,
        description="Instances that wait or are computed; beyond, requests are answered 503 with Retry-After.",
    )

    heartbeat_seconds: float = Field(15.0, gt=0, description="Longest silence of an event stream.")
    poll_seconds: float = Field(
        0.25, gt=0, description="How often an event stream looks for events."
    )
    drain_seconds: float = Field(
        0.0, ge=0, description="After SIGTERM, how long readiness says no before connections close."
    )
    grace_seconds: int = Field(
        30, ge=1, description="After that, how long requests in flight may take."
    )

    @property
    def store_url(self) -> str:
        """The address of the job store; it may hold a password."""
        return self.store or store_in(self.home)

    @property
    def shares_store(self) -> bool:
        """Whether processes on several hosts may use the store: any database but a file."""
        return not self.store_url.startswith("sqlite")

    @field_validator("models_mirror", "models_follow")
    @classmethod
    def _folder(cls, uri: str | None) -> str | None:
        """A URI of object storage, without credentials: it is shown."""
        if uri is not None and not FOLDER.fullmatch(uri):
            raise ValueError(
                "it is no folder of object storage: write s3://bucket/folder, gs://bucket/folder or file:///folder"
            )
        return uri

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        """A home that follows is led from elsewhere; to mirror it as well would send its aliases in circles."""
        if self.models_mirror is not None and self.models_follow is not None:
            raise ValueError(
                "models_mirror and models_follow are for different homes: set one of them"
            )
        return self

    @field_validator("dataset_uris")
    @classmethod
    def _prefixes(cls, prefixes: tuple[str, ...]) -> tuple[str, ...]:
        """Prefixes that name a host whole: https://host would also admit https://host.evil."""
        for prefix in prefixes:
            if not PREFIX.fullmatch(prefix):
                raise ValueError(
                    f"{prefix[:80]!r} is no prefix of URIs: write https://host/ or https://host/folder/"
                )
        return prefixes

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """Origins as browsers spell them; `*` would admit every page that anybody opens."""
        for origin in origins:
            if not ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin[:80]!r} is not an origin: write https://name or https://name:port, never *"
                )
        return origins

    @property
    def admits_all(self) -> bool:
        """Whether everybody may come in while there is no key: where only this machine reaches us, or the operator says so."""
        return self.insecure_dev or _is_loopback(self.host)

    @property
    def threads(self) -> int:
        """Threads of a process for predictions."""
        return self.predict_threads or max(1, cores() // self.workers)

    @property
    def hosts(self) -> frozenset[str]:
        """Host names that requests may address, lower case, without port; `*` allows any."""
        named = {
            "localhost",
            "127.0.0.1",
            "::1",
            self.host.lower(),
            *(name.lower() for name in self.allowed_hosts),
        }
        return frozenset(named | {"*"} if self.insecure_dev else named)


def check_address(settings: Settings, has_keys: Callable[[], bool] = lambda: False) -> None:
    """Refuse to listen where strangers can reach the service without a key, or read keys on their way.

    has_keys: whether the store holds a key. Raises ParameterError, code PUBLIC_ADDRESS or TLS, with the mend.
    """
    if (settings.tls_certfile is None) != (settings.tls_keyfile is None):
        raise ParameterError(
            "TLS needs two files: set XCRAY_TLS_CERTFILE and XCRAY_TLS_KEYFILE", code="TLS"
        )
    if settings.insecure_dev or _is_loopback(settings.host):
        return
    if not has_keys():
        raise ParameterError(
            f"refusing to listen on {settings.host}: everyone who reaches it could train, read and delete without a key. "
            "Make one first (xcray keys create --scopes admin), use --host 127.0.0.1, or --insecure-dev if the network is closed",
            code="PUBLIC_ADDRESS",
        )
    if settings.tls_certfile is None and not settings.behind_proxy:
        raise ParameterError(
            f"refusing plain HTTP on {settings.host}: keys could be read on their way. Set XCRAY_TLS_CERTFILE and "
            "XCRAY_TLS_KEYFILE; or XCRAY_BEHIND_PROXY=1 when a proxy speaks TLS with clients",
            code="PLAIN_HTTP",
        )


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address. Names but localhost resolve who knows where, so they count as public."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
