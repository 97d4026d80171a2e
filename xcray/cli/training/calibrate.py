"""`xcray calibrate`: a model with probabilities, made from one with scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.terminal import output
from xcray.cli.training.train import percent
from xcray.errors import InputError

if TYPE_CHECKING:
    from xcray.model.model import Model
    from xcray.model.registry import Registry


def calibrate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model directory; or NAME, NAME:VERSION, NAME@ALIAS of a service's home.",
        ),
    ],
    dataset: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A data set with held-out rows and the model's features."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The model directory to write; it must not exist."),
    ] = None,
    publish: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Publish it as the next version of this name in the service's home instead.",
        ),
    ] = None,
    home: Annotated[
        Path | None, typer.Option(help="The service's folder. [default: XCRAY_HOME, else ~/.xcray]")
    ] = None,
    part: Annotated[
        str, typer.Option(help="test; or train, of a data set that the model was not trained on.")
    ] = "test",
    seed: Annotated[
        int,
        typer.Option(
            min=0, help="Another seed, another split into rows to fit and rows to measure on."
        ),
    ] = 0,
    json: output.AsJson = False,
) -> None:
    """Fit probabilities to a model's scores, on rows it was not trained on. Answers stay the same; files are shared."""
    from xcray.training.calibration.apply import calibrate as make

    if (out is None) == (publish is None):
        raise InputError("say where it goes: --output DIR, or --publish NAME", code="USAGE")
    source = (
        Path(model)
        if (Path(model) / "manifest.json").is_file()
        else registry_of(home).resolve(model)
    )
    if out is not None:
        made, where = make(source, dataset, out, part=part, seed=seed), str(out)
    else:
        made, where = published(
            make, source, dataset, registry_of(home), str(publish), part=part, seed=seed
        )
    if json:
        output.emit({"model": where, "sha256": made.sha256, "calibration": made.calibrated})
        return
    show(made.calibrated)
    output.say(f"model {where}, sha256 {made.sha256[:16]}")


def registry_of(home: Path | None) -> Registry:
    """The models of the service on this machine."""
    from xcray.jobs.home import Home
    from xcray.model.registry import Registry
    from xcray.service.settings import Settings

    chosen: dict[str, Any] = {} if home is None else {"home": home}
    return Registry(Home(Settings(**chosen).home).models)


def published(
    make: Any, source: Path, dataset: Path, registry: Registry, name: str, **how: Any
) -> tuple[Model, str]:
    """Make it beside the registry and move it in; the model, and the reference it has now."""
    from xcray.model.model import Model
    from xcray.storage.atomic import check_name, discard_directory, staging_directory

    staging = staging_directory(
        registry.root / check_name(name, "model name")
    )  # hidden, on the registry's file system
    try:
        make(source, dataset, staging / "model", **how)
        reference = f"{name}:{registry.publish(name, staging / 'model')}"
        return Model.open(registry.resolve(reference), verify=False), reference
    finally:
        discard_directory(staging)


def show(facts: Mapping[str, Any]) -> None:
    """What the probabilities are worth."""
    rows = facts["rows"]
    left = f", {rows['left_out']:,} left out: the training has the same" if rows["left_out"] else ""
    bins, places = len(facts["bins"]), facts["places"]
    output.say(
        f"fitted on {rows['fitted']:,} held-out rows, measured on {rows['measured']:,} others{left}"
    )
    groups = (
        f"places {', '.join(map(str, places[:-1]))} and {places[-1]} on apart"
        if places
        else "all places together"
    )
    output.say(f"{bins} bin{'s' if bins > 1 else ''} of labels by frequency, {groups}")
    output.table(
        ["percent", *(f"@{k}" for k in facts["report"])],
        [
            [name, *(percent(found[key]) for found in facts["report"].values())]
            for name, key in SHOWN.items()
        ],
    )


SHOWN = {
    "ECE of sigmoid(score)": "ece_sigmoid",
    "ECE": "ece",
    "ECE of a perfect forecast": "floor",
    "Brier of sigmoid(score)": "brier_sigmoid",
    "Brier of a constant": "brier_constant",
    "Brier": "brier",
}
