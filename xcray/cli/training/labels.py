"""`xcray labels`, `retrain` and `update`: changes of the labels of a model, and of its rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.api.options import LocalPoolOptions
from xcray.cli.terminal import output
from xcray.cli.terminal.declared_options import Options, with_options
from xcray.cli.terminal.interrupt import resumable_run
from xcray.cli.training.train import print_result
from xcray.errors import InputError, missing_file

if TYPE_CHECKING:
    from xcray.training import TrainResult
    from xcray.training.edit.apply import EditOptions

app = typer.Typer(
    name="labels",
    help="Labels of a model: list, show, add, remove, merge, rename. "
    "Other labels stay bit-identical.",
    no_args_is_help=True,
)

ModelDir = Annotated[
    Path, typer.Argument(metavar="MODEL_DIR", help="Model directory; it is not changed.")
]
Out = Annotated[
    Path,
    typer.Option(
        "--out", "-o", metavar="NEW_DIR", help="Model directory to write; it must not exist."
    ),
]
DatasetDir = Annotated[
    Path, typer.Option("--dataset", metavar="DIR", help="Data set with the features of the model.")
]
LabelsFile = Annotated[Path | None, typer.Option(help="File of label names, one per line.")]
RunDir = Annotated[
    Path | None,
    typer.Option(
        help="Directory for finished labels; use it again to resume; default: NEW_DIR.run."
    ),
]


Labels = Annotated[
    list[str] | None, typer.Option("--labels", metavar="NAME", help="Label name. Repeatable.")
]


@app.command()
@with_options(LocalPoolOptions)
def add(
    model: ModelDir,
    dataset: DatasetDir,
    out: Out,
    labels: Labels = None,
    labels_file: LabelsFile = None,
    *,
    options: Options,
    run_dir: RunDir = None,
) -> None:
    """Train labels of a data set that the model lacks (all, or those given) and append them.

    Example: xcray labels add MODEL --dataset DATA --out MODEL-2
    """
    from xcray.training.edit.labels import add_labels

    named = read_names(labels, labels_file)
    run_edit(lambda how: add_labels(model, dataset, out, named, how), out, run_dir, options)


@app.command()
def remove(
    model: ModelDir,
    out: Out,
    labels: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Label names.")
    ] = None,
    labels_file: LabelsFile = None,
    dataset: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Data set to evaluate the new model on.")
    ] = None,
) -> None:
    """Remove labels."""
    from xcray.training.edit.labels import remove_labels

    named = read_names(labels, labels_file)
    run_edit(lambda how: remove_labels(model, out, named, dataset, how), out)


@app.command()
@with_options(LocalPoolOptions)
def merge(
    model: ModelDir,
    labels: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME NAME...",
            help="Label names; the merged label takes the position of the first.",
        ),
    ],
    into: Annotated[str, typer.Option("--into", metavar="NAME", help="Name of the merged label.")],
    dataset: DatasetDir,
    out: Out,
    *,
    options: Options,
    run_dir: RunDir = None,
) -> None:
    """Merge several labels into one, trained on the rows of all of them."""
    from xcray.training.edit.labels import merge_labels

    run_edit(
        lambda how: merge_labels(model, dataset, out, labels, into, how),
        out,
        run_dir,
        options,
    )


@app.command()
def rename(
    model: ModelDir,
    out: Out,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="OLD=NEW...", help="Old and new names.")
    ] = None,
    names_file: Annotated[
        Path | None, typer.Option(help="JSON file with an object of old and new names.")
    ] = None,
) -> None:
    """Rename labels; two labels can swap names."""
    from xcray.training.edit.labels import rename_labels

    pairs = read_renames(names, names_file)
    run_edit(lambda how: rename_labels(model, out, pairs, how), out)


@with_options(LocalPoolOptions)
def retrain(
    model: ModelDir,
    dataset: DatasetDir,
    out: Out,
    labels: Labels = None,
    labels_file: LabelsFile = None,
    *,
    options: Options,
    run_dir: RunDir = None,
) -> None:
    """Retrain some labels of a model on a newer data set.

    Example: xcray retrain MODEL_DIR --labels a --labels b --dataset DIR --out NEW_DIR
    """
    from xcray.training.edit.labels import retrain_labels

    named = read_names(labels, labels_file)
    run_edit(
        lambda how: retrain_labels(model, dataset, out, named, how),
        out,
        run_dir,
        options,
    )


@with_options(LocalPoolOptions)
def update(
    model: ModelDir,
    dataset: Annotated[
        Path,
        typer.Option(
            "--dataset",
            metavar="DIR",
            help="Data set that `xcray data delta` made from that of the model.",
        ),
    ],
    out: Out,
    evaluate: Annotated[
        bool, typer.Option(help="Also measure the new model on the held-out rows.")
    ] = False,
    *,
    options: Options,
    run_dir: RunDir = None,
) -> None:
    """Update a model to changed rows: only labels that the change affects are solved again.

    All labels are certified on the changed rows; the others keep their weights, byte for byte.

    Example: xcray update MODEL_DIR --dataset DIR --out NEW_DIR
    """
    from xcray.training.edit.update import update_model

    run_edit(
        lambda how: update_model(model, dataset, out, how, evaluate=evaluate),
        out,
        run_dir,
        options,
    )


def run_edit(
    change: Callable[[EditOptions], TrainResult],
    out: Path,
    run_dir: Path | None = None,
    options: Options = MappingProxyType({}),
) -> None:
    """Run an edit with progress and Ctrl-C handling, and print the result."""
    from xcray.training.edit.apply import EditOptions

    with resumable_run(run_dir, out, "labels") as run:
        result = change(
            EditOptions(**options, run_dir=run.folder, progress=run.progress, stop=run.stop)
        )
    counts = result.report
    output.print_line(
        f"{counts['operation']}: {counts['labels_trained']:,} labels trained, "
        f"{counts['labels_kept']:,} kept, {counts['labels']:,} in total"
    )
    print_result(result)


def read_names(names: list[str] | None, file: Path | None) -> list[str]:
    """Return label names from arguments and lines of a file. Raises NotFound, InputError."""
    if file is None:
        return list(names or ())
    return [*(names or ()), *(line for line in read_text(file).splitlines() if line.strip())]


def read_renames(renames: list[str] | None, file: Path | None) -> dict[str, str]:
    """Return renames from OLD=NEW arguments and a JSON file. Raises NotFound, InputError."""
    pairs = output.parse_assignments(renames, "OLD=NEW", "cvs=csv")
    if len(pairs) < len(renames or ()):
        raise InputError("a label is renamed twice; use each old name once", code="USAGE")
    return {**pairs, **({} if file is None else read_json_object(file))}


def read_json_object(file: Path) -> dict[str, str]:
    """Read a JSON object of strings. Raises NotFound, InputError."""
    import json

    try:
        content: Any = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file.name} is not JSON: {error}") from None
    if not isinstance(content, dict) or not all(
        isinstance(value, str) for value in content.values()
    ):
        raise InputError(
            f'{file.name} must hold an object of names, like {{"old name": "new name"}}'
        )
    return content


def read_text(file: Path) -> str:
    """Read a text file. Raises NotFound, InputError."""
    try:
        return file.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise missing_file(file) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file.name} is not UTF-8: {error.reason} at byte {error.start}"
        ) from None
