"""`xcray data`: build a data set directory from files, check a file, look at a data set."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.service.connect import ServerChoice, client_of
from xcray.cli.terminal import output
from xcray.errors import InputError

if TYPE_CHECKING:
    from xcray.data.dataset import Dataset

app = typer.Typer(name="data", help="Data sets: build, check, look.", no_args_is_help=True)

FILELESS = ("pydocs", "synthetic")
FORMATS = "svmlight, xc, jsonl, csv, tsv, parquet; or pydocs, synthetic, which need no file"

Format = Annotated[str, typer.Argument(metavar="FORMAT", help=FORMATS)]
ZeroBased = Annotated[
    bool, typer.Option("--zero-based", help="svmlight: feature indices start at 0.")
]
TextFields = Annotated[
    str | None, typer.Option(help="Fields joined to the text, with commas between. [default: text]")
]
LabelField = Annotated[
    str | None, typer.Option(help="Field that holds the labels. [default: labels]")
]
LabelSeparator = Annotated[
    str | None, typer.Option(help="Between labels in one field. [default: |]")
]
LabelsFile = Annotated[Path | None, typer.Option(help="xc: labels in a file of their own.")]
Features = Annotated[int | None, typer.Option(min=1, help="Number of features; more is an error.")]
Labels = Annotated[int | None, typer.Option(min=1, help="Number of labels; more is an error.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="NAME=VALUE",
        help="Any other option; text.min_df=2 and synthetic.rows=1000 reach inside.",
    ),
]


@app.command()
def build(
    format: Format,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="[INPUT] DIR", help="The file to read, and the directory to make."),
    ],
    test: Annotated[Path | None, typer.Option(help="A file of held-out rows.")] = None,
    test_fraction: Annotated[
        float | None, typer.Option(min=0.0, max=0.9, help="Share of rows to hold out by hash.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed, another split.")] = None,
    name: Annotated[
        str | None, typer.Option(help="The data set's name. [default: that of the directory]")
    ] = None,
    label_names: Annotated[
        Path | None, typer.Option(help="Label names, one a line, in the order of their ids.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave bad lines out and count them.")
    ] = False,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A model or data set whose features (and text pipeline) to use as they are.",
        ),
    ] = None,
    zero_based: ZeroBased = False,
    n_features: Features = None,
    n_labels: Labels = None,
    labels_file: LabelsFile = None,
    text_fields: TextFields = None,
    label_field: LabelField = None,
    label_separator: LabelSeparator = None,
    option: Options = None,
    json: output.AsJson = False,
) -> None:
    """Build a data set: xcray data build jsonl train.jsonl my-data --test test.jsonl"""
    from xcray.data.build import BuildOptions
    from xcray.data.build import build as make

    *inputs, target = paths
    sources = sources_of(format, inputs, test)
    given = {
        "name": name,
        "test_fraction": test_fraction,
        "seed": seed,
        "label_names_file": label_names,
        **reading(
            zero_based, n_features, n_labels, labels_file, text_fields, label_field, label_separator
        ),
        **({"skip_bad": True} if skip_bad else {}),
    }
    options = BuildOptions.from_dict({**told(given), **nested(option)})
    options = replace(options, like=None if like is None else str(like))
    if not json:
        output.note(
            f"building {target} from {', '.join(str(path) for path in sources.values()) or format}"
        )
    show(make(format, sources, target, options), json)


def sources_of(format: str, inputs: list[Path], test: Path | None) -> dict[str, Path]:
    """The files by part. Raises InputError when there are too many, or too few."""
    if format in FILELESS and (inputs or test):
        raise InputError(f"{format} reads no file: xcray data build {format} DIR", code="USAGE")
    if format not in FILELESS and len(inputs) != 1:
        raise InputError(
            f"give one input file and a directory: xcray data build {format} INPUT DIR",
            code="USAGE",
        )
    sources = {"train": inputs[0]} if inputs else {}
    return sources if test is None else {**sources, "test": test}


def reading(
    zero_based: bool,
    n_features: int | None,
    n_labels: int | None,
    labels_file: Path | None,
    text_fields: str | None,
    label_field: str | None,
    label_separator: str | None,
) -> dict[str, Any]:
    """Reading options by the names the data room knows."""
    return {
        "zero_based": zero_based or None,
        "n_features": n_features,
        "n_labels": n_labels,
        "labels_file": labels_file,
        "text_fields": text_fields,
        "label_field": label_field,
        "label_separator": label_separator,
    }


def told(values: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, paths as strings."""
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in values.items()
        if value is not None
    }


def nested(given: list[str] | None) -> dict[str, Any]:
    """{"text": {"min_df": 2}} of ["text.min_df=2"]; values are read as JSON where they are JSON."""
    out: dict[str, Any] = {}
    for name, value in output.assignments(given).items():
        group, _, inner = name.rpartition(".")
        place = out.setdefault(group, {}) if group else out
        place[inner] = value_of(value)
    return out


def value_of(text: str) -> Any:
    """A number, true, false, null or list when it reads as one, else the string."""
    try:
        return jsonlib.loads(text)
    except ValueError:
        return text


@app.command()
def check(
    format: Format,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to read.")],
    zero_based: ZeroBased = False,
    n_features: Features = None,
    n_labels: Labels = None,
    labels_file: LabelsFile = None,
    text_fields: TextFields = None,
    label_field: LabelField = None,
    label_separator: LabelSeparator = None,
    option: Options = None,
    json: output.AsJson = False,
) -> None:
    """Read a file for its errors alone: the first 20 and a summary. Ends with 2 when there are any."""
    from xcray.data.check import check as read
    from xcray.data.readers.options import ReadOptions

    given = reading(
        zero_based, n_features, n_labels, labels_file, text_fields, label_field, label_separator
    )
    report = read(format, file, ReadOptions.from_dict({**told(given), **nested(option)}))
    if json:
        output.emit({"good": report.good, **report.as_dict()})
    else:
        for error in report.errors:
            output.say(
                f"{error['code']}: {error['message']}"
                + (f" ({error['hint']})" if error.get("hint") else "")
            )
        more = (
            f", {report.n_bad - len(report.errors):,} more errors"
            if report.n_bad > len(report.errors)
            else ""
        )
        sizes = {
            "good rows": report.rows,
            "features": report.features,
            "labels": report.labels,
            "entries": report.nnz,
        }
        output.pairs(
            {
                **sizes,
                "errors": f"{report.n_bad:,}{more}",
                **{f"warning: {w}": n for w, n in report.warnings.items()},
            }
        )
    raise typer.Exit(output.OK if report.good else output.BAD_INPUT)


@app.command()
def upload(
    format: Format,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="The file to send; none for pydocs and synthetic."),
    ] = None,
    name: Annotated[str, typer.Option(help="The data set's name on the server.")] = "data",
    test: Annotated[Path | None, typer.Option(help="A file of held-out rows.")] = None,
    option: Options = None,
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """Make a data set on a server, from a file sent there, and wait until it is ready."""
    sources = sources_of(format, [file] if file else [], test)
    with client_of(server) as client:
        if sources:
            made = client.datasets.upload(
                sources["train"], name=name, format=format, test=test, options=nested(option)
            )
        else:
            made = client.datasets.build(name, format, nested(option))
        ready = client.datasets.wait(made["id"])
    if json:
        output.emit(ready)
    else:
        stats = ready["stats"]
        output.say(
            f"{ready['id']} {ready['name']} {ready['status']}: {stats['n_labels']:,} labels, {stats['n_features']:,} features"
        )


@app.command("list")
def index(server: ServerChoice = None, json: output.AsJson = False) -> None:
    """The data sets of a server, newest first."""
    with client_of(server) as client:
        found = list(client.datasets.list())
    if json:
        output.emit({"datasets": found})
        return
    rows = [
        [each["id"], each["name"], each["status"], each["stats"].get("n_labels"), each["created"]]
        for each in found
    ]
    output.table(["data set", "name", "status", "labels", "created"], rows)


@app.command()
def info(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A data set directory.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare every file with its checksum.")
    ] = False,
    json: output.AsJson = False,
) -> None:
    """What a data set holds: sizes, splits, frequent labels, where it came from."""
    from xcray.data.dataset import Dataset

    show(Dataset.open(directory, verify=verify), json)


@app.command()
def weigh(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A data set directory.")],
    weights: Annotated[
        Path,
        typer.Argument(
            metavar="WEIGHTS", help="A weight for each training row: .npy, or a number a line."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The data set directory to make.")],
    json: output.AsJson = False,
) -> None:
    """Give training rows weights: what their losses are multiplied by."""
    from xcray.data.dataset import Dataset
    from xcray.data.weights import read_weights, weigh

    show(weigh(Dataset.open(directory), read_weights(weights), out), json)


def show(dataset: Dataset, as_json: bool) -> None:
    """A data set's figures."""
    figures = describe(dataset)
    if as_json:
        output.emit(figures)
        return
    lines = {
        "data set": f"{figures['name']} at {figures['path']}",
        "labels": figures["n_labels"],
        "features": f"{figures['n_features']:,}" + (" (tf-idf of text)" if figures["text"] else ""),
        **{part: split_line(split) for part, split in figures["splits"].items()},
        "frequent labels": [f"{name} ({count:,})" for name, count in figures["frequent_labels"]],
        "skipped lines": figures["skipped"] or None,
        "weights": "of training rows" if figures["weights"] else None,
        "content hash": figures["content_hash"],
    }
    output.pairs({name: value for name, value in lines.items() if value is not None})


def split_line(split: Mapping[str, Any]) -> str:
    """`35,000 rows, 21.3 features and 3.1 labels each`."""
    n = max(split["n_rows"], 1)
    return f"{split['n_rows']:,} rows, {split['x_nnz'] / n:.1f} features and {split['y_nnz'] / n:.1f} labels each"


def describe(dataset: Dataset) -> dict[str, Any]:
    """A data set's figures, JSON-ready."""
    import numpy as np

    counts = dataset.label_counts
    order = np.argsort(-np.asarray(counts), kind="stable")[:5]
    return {
        "path": str(dataset.path),
        "name": dataset.name,
        "n_features": dataset.n_features,
        "n_labels": dataset.n_labels,
        "splits": {
            part: {"n_rows": split.n_rows, "x_nnz": split.X.nnz, "y_nnz": split.Y.nnz}
            for part, split in dataset.splits.items()
        },
        "frequent_labels": [[dataset.label_names[int(i)].as_py(), int(counts[i])] for i in order],
        "text": dataset.text is not None,
        "weights": dataset.train.weights is not None,
        "skipped": int(dataset.manifest.get("source", {}).get("skipped", 0)),
        "content_hash": dataset.content_hash,
        "source": dataset.manifest.get("source", {}),
    }
