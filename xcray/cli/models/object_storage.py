"""`xcray models push`, `pull`, `remote`: models in object storage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.terminal import output
from xcray.errors import InputError

if TYPE_CHECKING:
    from xcray.model.objectstore.remote_registry import Pulled
    from xcray.model.registry import Registry

URIS = "s3://bucket/folder, gs://bucket/folder or file:///folder"

Home = Annotated[
    Path | None,
    typer.Option(envvar="XCRAY_HOME", help="The home whose models are meant. [default: ~/.xcray]"),
]
Tenant = Annotated[str, typer.Option(help="Whose models these are in the home.")]


def registry_of(home: Path | None, tenant: str) -> Registry:
    """The models of a home."""
    from xcray.jobs.home import Home as HomeFolder
    from xcray.model.registry import Registry

    return Registry(HomeFolder(home or Path.home() / ".xcray").models_of(tenant))


def push(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model directory, or NAME, NAME:VERSION, NAME@ALIAS of the home.",
        ),
    ],
    uri: Annotated[
        str, typer.Argument(metavar="URI", help=f"The folder of models it goes to: {URIS}.")
    ],
    name: Annotated[
        str | None,
        typer.Option(help="Its name there. [default: its own, or that of the directory]"),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Send all files, also those that are there: mends a damaged copy."
        ),
    ] = False,
    home: Home = None,
    tenant: Tenant = "default",
    json: output.AsJson = False,
) -> None:
    """Copy a model to object storage: its files, then its manifest. What is there already is not sent again."""
    from xcray.model.objectstore.client import Place
    from xcray.model.objectstore.remote_registry import push as send

    if Path(model).is_dir():
        source, number, called = Path(model), None, name or Path(model).resolve().name
    else:
        registry = registry_of(home, tenant)
        own, version = registry.locate(model)
        source, called = registry.resolve(f"{own}:{version}"), name or own
        number = version if called == own else None
    done = send(source, Place.at(uri) / called, number, again=again)
    if json:
        output.emit(
            {
                "uri": done.shown,
                "model": done.name,
                "version": done.number,
                "seal": done.seal,
                "bytes": done.moved._asdict(),
            }
        )
    else:
        told = (
            f"{output.bytes_of(done.moved.sent)} sent" if done.moved.sent else "was there already"
        )
        output.say(f"{done.shown} ({told})")


def pull(
    uris: Annotated[
        list[str],
        typer.Argument(
            metavar="URI...", help=f"A folder of models, a model in it, a version: {URIS}."
        ),
    ],
    home: Home = None,
    into: Annotated[
        Path | None, typer.Option(help="A model directory to make, instead of a version in a home.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Another name for it here.")] = None,
    alias: Annotated[
        list[str] | None, typer.Option(help="An alias to lead to it; repeat it.")
    ] = None,
    sha256: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="Refuse anything but the model of this sha256 or seal."),
    ] = None,
    tenant: Tenant = "default",
    json: output.AsJson = False,
) -> None:
    """Copy models from object storage, every byte verified. Goes on where it was broken off; what is here already stays."""
    from xcray.model.objectstore.pull import pull_into, pull_to

    if len(uris) > 1 and (into or name or alias or sha256):
        raise InputError(
            "--into, --name, --alias and --sha256 are for one URI; pull the others by themselves",
            code="USAGE",
        )
    if into is not None and (name or alias):
        raise InputError(
            "--into makes a directory, which has no name and no aliases; or leave it out",
            code="USAGE",
        )
    if into is not None:
        done = [pull_into(into, uris[0], sha256)]
    else:
        registry = registry_of(home, tenant)
        done = [
            each
            for uri in uris
            for each in pull_to(registry, uri, name=name, alias=alias or (), pinned=sha256)
        ]
    if json:
        output.emit({"models": [as_dict(each) for each in done]})
        return
    for each in done:
        what = str(each.path) if each.number is None else f"{each.name}:{each.number}"
        told = (
            "is here already"
            if each.moved is None
            else f"{output.bytes_of(each.moved.sent)} fetched"
        )
        output.say(f"{what} ({told}), sha256 {each.sha256[:16]}")


def as_dict(pulled: Pulled) -> dict[str, Any]:
    """What came, for machines."""
    moved = None if pulled.moved is None else pulled.moved._asdict()
    return {**pulled._asdict(), "path": str(pulled.path), "moved": moved}


def remote(
    uri: Annotated[str, typer.Argument(metavar="URI", help=f"A folder of models: {URIS}.")],
    json: output.AsJson = False,
) -> None:
    """What models a folder of object storage holds."""
    from xcray.model.objectstore.client import Place
    from xcray.model.objectstore.remote_registry import aliases, is_whole, names, versions

    place = Place.at(uri)
    found = []
    for each in names(place):
        led = {alias: route.primary for alias, route in aliases(place / each).items()}
        for one in versions(place / each):
            at = [alias for alias, number in led.items() if number == one.number]
            whole = is_whole(one)
            manifest = one.manifest()[0] if whole else {}
            size = sum(entry["bytes"] for entry in manifest["files"].values()) if whole else None
            found.append(
                {
                    "model": each,
                    "version": one.number,
                    "aliases": at,
                    "whole": whole,
                    "n_labels": manifest["shape"][0] if whole else None,
                    "n_bytes": size,
                    "created": manifest.get("created"),
                    "sha256": manifest.get("sha256"),
                    "uri": one.place.shown,
                }
            )
    if json:
        output.emit({"models": found})
        return
    output.table(
        ["model", "version", "aliases", "labels", "size", "sha256"],
        [line_of(each) for each in found],
    )


def line_of(each: dict[str, Any]) -> list[Any]:
    """A version as a row."""
    size = output.bytes_of(each["n_bytes"]) if each["whole"] else "half pushed"
    return [
        each["model"],
        each["version"],
        each["aliases"],
        each["n_labels"],
        size,
        (each["sha256"] or "")[:16],
    ]
