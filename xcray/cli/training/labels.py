"""`xcray labels` and `xcray retrain`: labels of a model added, removed, merged, renamed, trained again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.terminal import output
from xcray.cli.terminal.interrupt import resumable
from xcray.cli.terminal.multi_value import Spreading
from xcray.cli.training.train import report
from xcray.errors import InputError, NotFound

if TYPE_CHECKING:
    from xcray.training import TrainResult
    from xcray.training.edit.apply import Running

app = typer.Typer(
    name="labels",
    help="Labels of a model: add, remove, merge, rename. Other labels keep every byte.",
    no_args_is_help=True,
)

ModelDir = Annotated[
    Path, typer.Argument(metavar="MODEL_DIR", help="A model directory; it is only read.")
]
Out = Annotated[
    Path,
    typer.Option(
        "--out", "-o", metavar="NEW_DIR", help="The model directory to write; it must not exist."
    ),
]
DatasetDir = Annotated[
    Path, typer.Option("--dataset", metavar="DIR", help="A data set with the model's features.")
]
LabelsFile = Annotated[Path | None, typer.Option(help="A file of label names, one a line.")]
PoolName = Annotated[str, typer.Option("--pool", help="threads or serial.")]
Workers = Annotated[int, typer.Option(min=0, help="Workers; 0 means all cores.")]
RunDir = Annotated[
    Path | None,
    typer.Option(
        help="Where finished labels are kept; the same one again resumes. [default: NEW_DIR.run]"
    ),
]


class ByLabels(Spreading):
    """`--labels a b c`."""

    SPREAD = frozenset({"--labels"})


Labels = Annotated[
    list[str] | None, typer.Option("--labels", metavar="NAME...", help="Names of labels.")
]


@app.command(cls=ByLabels)
def add(
    model: ModelDir,
    dataset: DatasetDir,
    out: Out,
    labels: Labels = None,
    labels_file: LabelsFile = None,
    pool: PoolName = "threads",
    workers: Workers = 0,
    run_dir: RunDir = None,
    json: output.AsJson = False,
) -> None:
    """Train labels that a data set has and the model has not (all of them, or those named), and append them."""
    from xcray.training.edit.operations import add_labels

    named = names_of(labels, labels_file)
    carry_out(
        lambda how: add_labels(model, dataset, out, named, how), out, run_dir, pool, workers, json
    )


@app.command()
def remove(
    model: ModelDir,
    out: Out,
    labels: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Names of labels.")
    ] = None,
    labels_file: LabelsFile = None,
    dataset: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A data set to measure the new model on.")
    ] = None,
    json: output.AsJson = False,
) -> None:
    """Drop labels."""
    from xcray.training.edit.operations import remove_labels

    named = names_of(labels, labels_file)
    carry_out(
        lambda how: remove_labels(model, out, named, dataset, how), out, None, "threads", 0, json
    )


@app.command()
def merge(
    model: ModelDir,
    labels: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME NAME...", help="Names of labels; the first one's place is taken."
        ),
    ],
    into: Annotated[
        str, typer.Option("--into", metavar="NAME", help="The name of the label they become.")
    ],
    dataset: DatasetDir,
    out: Out,
    pool: PoolName = "threads",
    workers: Workers = 0,
    run_dir: RunDir = None,
    json: output.AsJson = False,
) -> None:
    """Make one label of several, trained on the rows of all of them."""
    from xcray.training.edit.operations import merge_labels

    carry_out(
        lambda how: merge_labels(model, dataset, out, labels, into, how),
        out,
        run_dir,
        pool,
        workers,
        json,
    )


@app.command()
def rename(
    model: ModelDir,
    out: Out,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="OLD=NEW...", help="Old and new names.")
    ] = None,
    names_file: Annotated[
        Path | None, typer.Option(help="A JSON file of an object: old name to new name.")
    ] = None,
    json: output.AsJson = False,
) -> None:
    """Give labels other names; two may swap theirs."""
    from xcray.training.edit.operations import rename_labels

    pairs = pairs_of(names, names_file)
    carry_out(lambda how: rename_labels(model, out, pairs, how), out, None, "threads", 0, json)


def retrain(
    model: ModelDir,
    dataset: DatasetDir,
    out: Out,
    labels: Labels = None,
    labels_file: LabelsFile = None,
    pool: PoolName = "threads",
    workers: Workers = 0,
    run_dir: RunDir = None,
    json: output.AsJson = False,
) -> None:
    """Train some labels of a model again, on a newer data set: xcray retrain MODEL_DIR --labels a b --dataset DIR --out NEW_DIR"""
    from xcray.training.edit.operations import retrain_labels

    named = names_of(labels, labels_file)
    carry_out(
        lambda how: retrain_labels(model, dataset, out, named, how),
        out,
        run_dir,
        pool,
        workers,
        json,
    )


def carry_out(
    change: Callable[[Running], TrainResult],
    out: Path,
    run_dir: Path | None,
    pool: str,
    workers: int,
    as_json: bool,
) -> None:
    """Run a change with progress, stopping at Ctrl-C, and say what came out."""
    from xcray.training.edit.apply import Running

    kept = run_dir or out.with_name(f"{out.name}.run")
    with resumable(
        lambda: f"finished labels are kept in {kept}" if kept.exists() else None, as_json
    ) as (show, flag):
        result = change(Running(pool, workers, kept, progress=show, stop=flag))
    if run_dir is None:
        shutil.rmtree(kept, ignore_errors=True)  # ours, and of no use once the model is there
    told = result.report
    if not as_json:
        counts = f"{told['labels_trained']:,} labels trained, {told['labels_kept']:,} kept, {told['labels']:,} in all"
        output.say(f"{told['operation']}: {counts}")
    report(result, as_json)


def names_of(given: list[str] | None, file: Path | None) -> list[str]:
    """Label names given as words and as the lines of a file. Raises NotFound, InputError."""
    if file is None:
        return list(given or ())
    return [*(given or ()), *(line for line in text_of(file).splitlines() if line.strip())]


def pairs_of(given: list[str] | None, file: Path | None) -> dict[str, str]:
    """Old and new names given as OLD=NEW and in a JSON file. Raises NotFound, InputError."""
    pairs = output.assignments(given)
    if len(pairs) < len(given or ()):
        raise InputError("a label is renamed twice; give each old name once", code="USAGE")
    return {**pairs, **({} if file is None else object_of(file))}


def object_of(file: Path) -> dict[str, str]:
    """A JSON object of strings. Raises NotFound, InputError."""
    import json

    try:
        found: Any = json.loads(text_of(file))
    except ValueError as error:
        raise InputError(f"{file.name} is not JSON: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InputError(f'{file.name} must hold an object of names, as {{"old name": "new name"}}')
    return found


def text_of(file: Path) -> str:
    """A text file. Raises NotFound, InputError."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFound(f"there is no file {file}") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file.name} is not UTF-8: {error.reason} at byte {error.start}"
        ) from None
