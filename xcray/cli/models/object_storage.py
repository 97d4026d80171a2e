"""`xcray models push`, `pull`: models in object storage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.terminal import output
from xcray.cli.terminal.storage import URIS, ResendOption, print_pulled, print_pushed
from xcray.errors import InputError

if TYPE_CHECKING:
    from xcray.model.objectstore.remote_registry import Pulled
    from xcray.model.registry import Registry

HomeOption = Annotated[
    Path | None,
    typer.Option(envvar="XCRAY_HOME", help="Home directory of the models; default: ~/.xcray."),
]
TenantOption = Annotated[str, typer.Option(help="Tenant of the models in the home directory.")]


def open_registry(home: Path | None, tenant: str) -> Registry:
    """Open the model registry of a home directory."""
    from xcray.jobs.home import Home as HomeFolder
    from xcray.model.registry import Registry
    from xcray.system.user_directories import default_home

    return Registry(HomeFolder(home or default_home()).models_of(tenant))


def push(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Model directory, or NAME, NAME:VERSION, NAME@ALIAS in the home directory.",
        ),
    ],
    uri: Annotated[str, typer.Argument(metavar="URI", help=f"Target folder of models: {URIS}.")],
    name: Annotated[
        str | None,
        typer.Option(help="Name in object storage; default: its own, or that of the directory."),
    ] = None,
    resend_all: ResendOption = False,
    home: HomeOption = None,
    tenant: TenantOption = "default",
) -> None:
    """Copy a model to object storage: its files, then its manifest.

    Files that already exist there are not sent again.
    """
    from xcray.model.objectstore.remote_registry import push as send
    from xcray.storage.objectstore.client import StoragePath

    if Path(model).is_dir():
        source, number, called = Path(model), None, name or Path(model).resolve().name
    else:
        registry = open_registry(home, tenant)
        own, version = registry.resolve_version(model)
        source, called = registry.resolve(f"{own}:{version}"), name or own
        number = version if called == own else None
    done = send(source, StoragePath.parse(uri) / called, number, resend_all=resend_all)
    print_pushed(done, "model")


def pull(
    uris: Annotated[
        list[str],
        typer.Argument(
            metavar="URI...", help=f"Folder of models, a model in it, or a version: {URIS}."
        ),
    ],
    home: HomeOption = None,
    into: Annotated[
        Path | None,
        typer.Option(help="Model directory to write, instead of a version in the home directory."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Local name of the model.")] = None,
    alias: Annotated[
        list[str] | None, typer.Option(help="Alias to point to it. Repeatable.")
    ] = None,
    sha256: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="Expected sha256 or seal of the model."),
    ] = None,
    tenant: TenantOption = "default",
) -> None:
    """Copy models from object storage and verify every byte.

    An interrupted copy is continued; existing models are kept.
    """
    from xcray.model.objectstore.remote_registry import pull_to_directory, pull_to_registry

    if len(uris) > 1 and (into or name or alias or sha256):
        raise InputError(
            "--into, --name, --alias and --sha256 work with one URI; pull the others separately",
            code="USAGE",
        )
    if into is not None and (name or alias):
        raise InputError(
            "--into writes a directory, which has no name and no aliases; omit one of the options",
            code="USAGE",
        )
    if into is not None:
        done = [pull_to_directory(into, uris[0], sha256)]
    else:
        registry = open_registry(home, tenant)
        done = [
            each
            for uri in uris
            for each in pull_to_registry(registry, uri, name=name, alias=alias or (), pinned=sha256)
        ]
    output.print_json({"models": [pull_as_dict(each) for each in done]})
    for each in done:
        what = str(each.path) if each.number is None else f"{each.name}:{each.number}"
        print_pulled(what, each.moved, f"sha256 {each.sha256[:16]}")


def pull_as_dict(pulled: Pulled) -> dict[str, Any]:
    """Return a pulled model as a JSON-ready dictionary."""
    moved = None if pulled.moved is None else pulled.moved._asdict()
    return {**pulled._asdict(), "path": str(pulled.path), "moved": moved}
