"""`xcray models compare`, with a gate for CI, and `xcray models blend`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from xcray.cli.connect import ServerOption, make_client
from xcray.cli.models.predict import is_directory
from xcray.cli.terminal import output
from xcray.cli.terminal.evaluations import print_comparison, print_evaluation, print_gate
from xcray.errors import NotFound, excerpt


def compare(
    old: Annotated[
        str,
        typer.Argument(
            metavar="OLD", help="Model directory; or NAME, NAME:VERSION, NAME@ALIAS on the server."
        ),
    ],
    new: Annotated[
        str, typer.Argument(metavar="NEW", help="Model to compare with OLD; of the same kind.")
    ],
    dataset: Annotated[
        str,
        typer.Option(
            metavar="DIR", help="Data set with held-out rows; of versions, one of the server."
        ),
    ],
    gate: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITIONS",
            help='Least differences in points, such as "P@1 >= -0.2, PSP@5 >= -0.5"; exit with '
            "1 if one does not hold.",
        ),
    ] = None,
    all_measures: Annotated[
        bool,
        typer.Option("--all", help="Print all measures, also by label frequency, and the cost."),
    ] = False,
    server: ServerOption = None,
) -> None:
    """Measure a new model and an old one on held-out rows, and check a gate.

    Differences are new minus old in points, with 95 % bootstrap intervals.

    Example: xcray models compare OLD NEW --dataset DATA --gate "P@1 >= -0.2"
    """
    models = [old, new]
    local = [is_directory(each, server) for each in models]
    if any(local) and not all(local):
        other = models[local.index(False)]
        raise NotFound(f"there is no model directory {excerpt(other)}, to compare with another one")
    if all(local):
        from xcray.cli.terminal.compilation import compilation_note
        from xcray.training.evaluation import compare_models

        with compilation_note():
            document = compare_models(models, dataset, gate)
    else:
        with make_client(server) as client:
            document = client.models.compare(models, dataset, gate=gate)
    found = document["models"][1]
    output.print_json(document)
    print_gate(found["gate"])
    (print_evaluation if all_measures else print_comparison)(document)
    for name in ("gained", "lost"):
        print_labels(name, found[f"labels_{name}"])
    raise typer.Exit(output.OK if found["passed"] else output.FAILURE)


def blend(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Model directories, two or more.")
    ],
    dataset: Annotated[
        str,
        typer.Option(metavar="DIR", help="Data set with rows that no model was trained on."),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Model directory to write; it must not exist.")
    ],
    part: Annotated[
        str, typer.Option(help="Rows to use: test, or train for a data set of other rows.")
    ] = "test",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split of the rows.")] = 0,
) -> None:
    """Blend linear models over the same features into one.

    Its weights are chosen on half of the held-out rows and measured on the others.
    """
    from xcray.cli.terminal.compilation import compilation_note
    from xcray.training.edit.blend import blend_models

    with compilation_note():
        model = blend_models(models, dataset, out, part=part, seed=seed)
    report = model.manifest["report"]["blend"]
    output.print_json({"model": str(out), "sha256": model.sha256, "blend": report})
    names = list(model.measures)
    rows = [
        [name, f"{entry['share']:.2f}", f"{weights:,}"]
        + [f"{100 * entry['measures'][each]:.2f}" for each in names]
        for name, entry, weights in zip(models, report["parts"], report["weights"], strict=False)
    ]
    whole = [f"{100 * model.measures[each]:.2f}" for each in names]
    rows.append([str(out), "1.00", f"{report['weights'][-1]:,}", *whole])
    output.print_line(
        f"chosen on {report['rows']['chosen']:,} rows, measured on {report['rows']['measured']:,}"
    )
    output.print_table(["model", "share", "weights", *names], rows)


def print_labels(change: str, labels: Sequence[Mapping[str, Any]]) -> None:
    """Print the labels that gained or lost most right answers, with these before and after."""
    shown = [f"{each['label']} ({each['hits'][0]} -> {each['hits'][1]})" for each in labels[:5]]
    output.print_line(f"labels that {change} right answers: {', '.join(shown) or 'none'}")
