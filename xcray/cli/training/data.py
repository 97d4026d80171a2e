"""`xcray data`: build and inspect data sets."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.api.options import ReadingOptions
from xcray.cli.connect import RayAddressOption, ServerOption, make_client, resolve_ray_address
from xcray.cli.terminal import output
from xcray.cli.terminal.completion import DatasetArgument
from xcray.cli.terminal.declared_options import Options, with_options
from xcray.cli.training import data_storage, public_sets
from xcray.data.readers.formats import FILE_FORMATS, GENERATED_FORMATS
from xcray.errors import InputError

if TYPE_CHECKING:
    from xcray.data.dataset import Dataset

app = typer.Typer(name="data", help="Data sets: build, inspect, push, pull.", no_args_is_help=True)
app.command("fetch")(public_sets.fetch)
app.command("push")(data_storage.push)
app.command("pull")(data_storage.pull)

FORMATS = f"Input format: {', '.join(FILE_FORMATS)}; no file: {', '.join(GENERATED_FORMATS)}."

Format = Annotated[str, typer.Argument(metavar="FORMAT", help=FORMATS)]
TestFile = Annotated[Path | None, typer.Option("--test", help="File of held-out rows.")]
TestFraction = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=0.9,
        help="Share of rows to hold out, chosen by hash; default: 0, of pydocs and synthetic 0.1.",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Seed of the split; default: 0.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip and count invalid lines.")]
LabelsFile = Annotated[Path | None, typer.Option(help="xc, npy: separate file with the labels.")]
OtherOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="Any other option; nested like text.min_df=2 or synthetic.rows=1000.",
    ),
]


@app.command()
@with_options(ReadingOptions)
def build(
    format: Format,
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="[INPUT] DIR", help="File to read, and data set directory to write."
        ),
    ],
    test: TestFile = None,
    test_fraction: TestFraction = None,
    seed: Seed = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the data set; default: name of the directory.")
    ] = None,
    label_names: Annotated[
        Path | None,
        typer.Option(help="File of label names, one per line, in the order of their ids."),
    ] = None,
    skip_bad: SkipBad = False,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Model or data set whose features (and text pipeline) are reused.",
        ),
    ] = None,
    labels_file: LabelsFile = None,
    *,
    options: Options,
    option: OtherOptions = None,
) -> None:
    """Build a data set.

    Example: xcray data build jsonl train.jsonl my-data --test test.jsonl
    """
    from xcray.cli.terminal.compilation import compilation_note
    from xcray.data.build import BuildOptions
    from xcray.data.build import build as make

    *inputs, target = paths
    sources = input_files(f"data build {format} INPUT DIR", format, inputs, test)
    given = {
        "name": name,
        "test_fraction": test_fraction,
        "seed": seed,
        "label_names_file": label_names,
        "labels_file": labels_file,
        "skip_bad": skip_bad or None,
    }
    values = {**given_options(given), **options, **parse_options(option)}
    how = replace(BuildOptions.from_dict(values), like=None if like is None else str(like))
    output.print_note(
        f"building {target} from {', '.join(str(path) for path in sources.values()) or format}"
    )
    with compilation_note():
        print_dataset(make(format, sources, target, how))


def input_files(usage: str, format: str, inputs: list[Path], test: Path | None) -> dict[str, Path]:
    """Return the input files by part.

    usage: the command with one input file. Raises InputError if there are too many or too few.
    """
    if format in GENERATED_FORMATS and (inputs or test):
        raise InputError(
            f"{format} takes no input file: xcray {usage.replace(' INPUT', '')}", code="USAGE"
        )
    if format not in GENERATED_FORMATS and len(inputs) != 1:
        if Path(format).is_file():
            suffix = Path(format).suffix.removeprefix(".")
            kind = suffix if suffix in FILE_FORMATS else "FORMAT"
            command = usage.replace(f" {format} INPUT", f" {kind} {format}")
            raise InputError(
                f"{format} is a file, and the format comes before it: xcray {command}",
                code="USAGE",
            )
        raise InputError(f"give one input file: xcray {usage}", code="USAGE")
    sources = {"train": inputs[0]} if inputs else {}
    return sources if test is None else {**sources, "test": test}


def given_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, with paths as strings."""
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in values.items()
        if value is not None
    }


def parse_options(values: list[str] | None) -> dict[str, Any]:
    """Parse ["text.min_df=2"] to {"text": {"min_df": 2}}; values are parsed as JSON if possible."""
    out: dict[str, Any] = {}
    for name, value in output.parse_assignments(values, example="text.min_df=2").items():
        group, _, inner = name.rpartition(".")
        place = out.setdefault(group, {}) if group else out
        place[inner] = parse_value(value)
    return out


def parse_value(text: str) -> Any:
    """Return a number, true, false, null or list if the text is one, else the text."""
    try:
        return jsonlib.loads(text)
    except ValueError:
        return text


@app.command()
def delta(
    base: Annotated[
        Path,
        typer.Argument(metavar="BASE", help="Data set directory."),
    ],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Data set directory to write.")],
    add: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Rows to add, read with the features of BASE."),
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="Format of the added rows; default: the suffix of the file.")
    ] = None,
    remove: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Training rows to remove, one per line: ids, if BASE was built with id_field, "
            "else numbers from 0.",
        ),
    ] = None,
    relabel: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='JSON lines: {"row": id or number, "labels": [...]}.'),
    ] = None,
    option: OtherOptions = None,
) -> None:
    """Make a data set of another one, with training rows added, removed and relabelled.

    Example: xcray data delta my-data my-data-2 --add new.jsonl --remove ids.txt
    """
    from xcray.cli.terminal.compilation import compilation_note
    from xcray.data.delta.files import delta_from_files

    with compilation_note():
        made = delta_from_files(
            base,
            out,
            add=add,
            format=format,
            remove=remove,
            relabel=relabel,
            options=parse_options(option),
        )
        print_dataset(made)


@app.command()
def show(
    dataset: DatasetArgument,
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify the checksum of every file.")
    ] = False,
) -> None:
    """Show sizes, frequent labels and warnings of a data set directory."""
    from xcray.cli.terminal.compilation import compilation_note
    from xcray.data.dataset import Dataset

    with compilation_note():
        print_dataset(Dataset.open(dataset, verify=verify))


@app.command()
@with_options(ReadingOptions)
def upload(
    format: Format,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="File to upload; none for pydocs and synthetic."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the data set on the server; default: that of the file."),
    ] = None,
    test: TestFile = None,
    test_fraction: TestFraction = None,
    seed: Seed = None,
    skip_bad: SkipBad = False,
    *,
    options: Options,
    option: OtherOptions = None,
    server: ServerOption = None,
) -> None:
    """Upload a file, build a data set from it on the server, and wait until it is ready.

    Example: xcray data upload csv tickets.csv --test-fraction 0.2
    """
    from xcray.data.writer import name_of

    sources = input_files(f"data upload {format} INPUT", format, [file] if file else [], test)
    name = name or name_of(file.name.partition(".")[0] if file else format)
    given = {"test_fraction": test_fraction, "seed": seed, "skip_bad": skip_bad or None}
    values = {**given_options(given), **options, **parse_options(option)}
    with make_client(server) as client:
        if sources:
            record = client.datasets.upload(
                sources["train"], name=name, format=format, test=test, options=values
            )
        else:
            record = client.datasets.build(name, format, values)
        ready = client.datasets.wait(record["id"])
    output.print_json(ready)
    stats = ready["stats"]
    output.print_line(
        f"{ready['id']} {ready['name']} {ready['status']}: {stats['n_labels']:,} labels, "
        f"{stats['n_features']:,} features"
    )


@app.command("list")
def list_datasets(server: ServerOption = None) -> None:
    """List the data sets of a server, newest first."""
    with make_client(server) as client:
        records = list(client.datasets.list())
    output.print_json({"datasets": records})
    rows = [
        [each["id"], each["name"], each["status"], each["stats"].get("n_labels"), each["created"]]
        for each in records
    ]
    output.print_table(["data set", "name", "status", "labels", "created"], rows)


@app.command()
def set_weights(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Data set directory.")],
    weights: Annotated[
        Path,
        typer.Argument(
            metavar="WEIGHTS", help="One weight per training row: .npy, or one number per line."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Data set directory to write.")],
) -> None:
    """Set the sample weights of the training rows, which multiply their losses."""
    from xcray.cli.terminal.compilation import compilation_note
    from xcray.data.dataset import Dataset
    from xcray.data.weights import read_weights, set_weights

    with compilation_note():
        print_dataset(set_weights(Dataset.open(directory), read_weights(weights), out))


@app.command()
def labels(
    directory: DatasetArgument,
    vocabulary: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Texts of labels: .jsonl (id, name, other_names, description, broader), .tsv "
            "(id, name), or SKOS (.ttl, .rdf, .nt).",
        ),
    ],
) -> None:
    """Store names and descriptions of labels in a data set; its models show and use them.

    Ids that are not labels of the data set are kept: a ranker can find them by their names.
    """
    from xcray.data.dataset import Dataset
    from xcray.data.label_texts import read_label_texts, set_label_texts

    dataset = Dataset.open(directory)
    texts = read_label_texts(vocabulary)
    counts = set_label_texts(dataset, texts).manifest["label_texts"]
    output.print_json({"path": str(directory), **counts})
    without = dataset.n_labels - counts["labels"]
    output.print_line(
        f"{counts['labels']:,} labels of {dataset.name} have texts, {without:,} have none; "
        f"{counts['others']:,} entries are no labels of the data set"
    )


@app.command()
def spectrum(
    directory: DatasetArgument,
) -> None:
    """Show eigenvalues of the second moments of the training rows, and which solvers suit them."""
    from xcray.data.dataset import Dataset
    from xcray.data.spectrum import SHARES, show_eigenvalues, spectrum

    found = spectrum(Dataset.open(directory).train.X).summary()
    output.print_json(found)
    values, shares = found["eigenvalues"], found["shares"].items()
    output.print_pairs(
        {
            "rows": f"{found['rows']:,}",
            "eigenvalues": show_eigenvalues(values, (*SHARES, len(values))),
            "sum of singular values": ", ".join(f"{n}: {100 * s:.0f} %" for n, s in shares),
            "condition": f"{found['condition']:.4g} (2nd to {found['values']:,}th singular value)",
            "advice": found["advice"],
        }
    )


@app.command()
def index(
    directory: DatasetArgument,
    leaf_size: Annotated[
        int, typer.Option(help="Maximum rows of a leaf, which is a page that is read at once.")
    ] = 256,
    memory_limit: Annotated[
        str, typer.Option(help="Memory that the command can take, like 4GiB.")
    ] = "1GiB",
    pool: Annotated[str, typer.Option(help="Pool: serial or ray (one task per tree).")] = "serial",
    workers: Annotated[
        int, typer.Option(min=0, help="Number of Ray's workers; 0 for all cores.")
    ] = 0,
    ray_address: RayAddressOption = None,
) -> None:
    """Build the metric forest of the training rows, for the solver indexed-bcd.

    The forest is part of the directory and serves every label, parameter and job. With it,
    trainings read rows page by page within their --memory-limit.
    """
    from xcray.data.dataset import open_verified
    from xcray.data.metric_forest.directory import build_forest_directory, open_forest
    from xcray.system.cores import available_cores
    from xcray.system.memory import anonymous_bytes
    from xcray.system.units import format_bytes, parse_bytes

    address = resolve_ray_address(pool, ray_address)
    dataset = open_verified(directory)
    limit = max(0, parse_bytes(memory_limit) - (anonymous_bytes() or 0))
    if pool == "ray":
        from xcray.workers.ray.session import load_ray

        load_ray()
        from xcray.workers.ray.pool import training_session
        from xcray.workers.ray.tree_tasks import TreesOnRay

        workers = workers or available_cores()
        with training_session(address, workers):
            path = build_forest_directory(dataset, leaf_size, limit, TreesOnRay(workers))
    elif pool == "serial":
        path = build_forest_directory(dataset, leaf_size, limit)
    else:
        raise InputError("--pool must be serial or ray", code="USAGE")
    indexed = open_forest(dataset, leaf_size).indexed
    summary = {
        "path": str(path),
        "rows": len(indexed.norms),
        "trees": len(indexed.trees) - 1,
        "leaves": indexed.pages.n_pages,
        "leaf_size": leaf_size,
    }
    size = sum(file.stat().st_size for file in path.iterdir())
    output.print_json({**summary, "bytes": size})
    output.print_pairs({**summary, "size": format_bytes(size)})


def print_dataset(dataset: Dataset) -> None:
    """Print a data set."""
    summary = dataset_summary(dataset)
    output.print_json(summary)
    lines = {
        "data set": f"{summary['name']} at {summary['path']}",
        "labels": summary["n_labels"],
        "features": f"{summary['n_features']:,}" + (" (tf-idf of text)" if summary["text"] else ""),
        **{part: format_split(split) for part, split in summary["splits"].items()},
        "frequent labels": [f"{name} ({count:,})" for name, count in summary["frequent_labels"]],
        "skipped lines": summary["skipped"] or None,
        "weights": "sample weights" if summary["weights"] else None,
        "content hash": summary["content_hash"],
    }
    output.print_pairs({name: value for name, value in lines.items() if value is not None})
    output.print_warnings(summary["warnings"])


def format_split(split: Mapping[str, Any]) -> str:
    """Format a split: `35,000 rows, 21.3 features and 3.1 labels each`."""
    n = max(split["n_rows"], 1)
    return (
        f"{split['n_rows']:,} rows, {split['x_nnz'] / n:.1f} features "
        f"and {split['y_nnz'] / n:.1f} labels each"
    )


def dataset_summary(dataset: Dataset) -> dict[str, Any]:
    """Return a JSON-ready summary of a data set."""
    import numpy as np

    from xcray.data.data_warnings import data_warnings

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
        "frequent_labels": [[dataset.label_names[int(i)], int(counts[i])] for i in order],
        "warnings": data_warnings(dataset),
        "text": dataset.text is not None,
        "weights": dataset.train.weights is not None,
        "skipped": int(dataset.manifest.get("source", {}).get("skipped", 0)),
        "content_hash": dataset.content_hash,
        "source": dataset.manifest.get("source", {}),
    }
