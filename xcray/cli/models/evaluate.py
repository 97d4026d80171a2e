"""`xcray evaluate`: measures of one or several models on a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from xcray.cli.terminal import output
from xcray.cli.terminal.completion import complete_datasets, complete_models
from xcray.errors import InputError


def evaluate(
    models: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="MODEL...",
            help="Model directories; all read the same features.",
            show_default=False,
            autocompletion=complete_models,
        ),
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA",
            show_default=False,
            help="Data set with the features of the models.",
            autocompletion=complete_datasets,
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(help="Rows to use: test or train; default: test rows, if there are any."),
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option("-k", min=1, help="Ranks to measure at. Repeatable; default: 1 3 5."),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, max=10_000, help="Bootstrap samples; 0 for no intervals.")
    ] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap samples.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Cores used by the search.")] = 1,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Also write a picture (SVG).")
    ] = None,
    json: output.JsonOption = False,
) -> None:
    """Compare models on held-out rows: measures with 95 % intervals, by frequency, and timing.

    F1 is that of the sets of the first k labels. Differences are to the first model, on the same
    bootstrap samples.
    """
    from xcray.cli.terminal.compilation import compilation_note
    from xcray.training.evaluation import (
        EvaluationOptions,
        evaluate_models,
        evaluation_picture,
    )

    if not models or dataset is None:
        raise InputError(
            "give at least one model and a data set: xcray evaluate MODEL... DATA", code="USAGE"
        )
    ks = sorted(set(k or (1, 3, 5)))
    options = EvaluationOptions(part, ks, samples, seed, threads)
    with compilation_note(quiet=json):
        document = evaluate_models(models, dataset, options)
    if picture is not None:
        evaluation_picture(document).write(picture)
    if json:
        output.print_json(document)
        return
    print_evaluation(document)
    output.print_warnings(document["warnings"])
    if picture is not None:
        output.print_line(str(picture))


def print_evaluation(document: Mapping[str, Any]) -> None:
    """Print the tables of an evaluation: measures, differences, groups of labels."""
    from xcray.training.evaluation import model_title

    models = document["models"]
    titles = [model_title(each["model"]) for each in models]
    names = list(dict.fromkeys(name for each in models for name in each["measures"]))
    rows = [[name, *(format_measure(each, name) for each in models)] for name in names]
    rows.append(["ms per row", *(f"{each['ms_per_row']:.3f}" for each in models)])
    output.print_line(
        f"{document['rows']:,} {document['part']} rows of {document['dataset']}; "
        "percent, with the half width of the 95 % interval"
    )
    output.print_table(["measure", *titles], rows)
    print_differences(models[1:], titles)
    print_groups(models, titles)
    for title, each in zip(titles, models, strict=True):
        if each["labels_missing"]:
            output.print_note(
                f"{title} lacks {each['labels_missing']:,} of {document['labels']:,} labels; "
                "they count as misses"
            )


def format_measure(entry: Mapping[str, Any], name: str) -> str | None:
    """Format a measure in percent with the half width of its interval."""
    if name not in entry["measures"]:
        return None
    value = f"{100 * entry['measures'][name]:.2f}"
    interval = entry["intervals"].get(name)
    return f"{value} ±{50 * (interval['high'] - interval['low']):.2f}" if interval else value


def print_differences(models: Sequence[Mapping[str, Any]], titles: Sequence[str]) -> None:
    """Print the differences to the first model, marked if their interval excludes 0."""
    if not models:
        return
    names = list(dict.fromkeys(name for each in models for name in each["differences"]))
    rows = [[name, *(format_difference(each, name) for each in models)] for name in names]
    output.print_line(f"difference to {titles[0]} in points (*: the interval excludes 0)")
    output.print_table(["measure", *titles[1:]], rows)


def format_difference(entry: Mapping[str, Any], name: str) -> str | None:
    """Format a difference in points with its interval."""
    difference = entry["differences"].get(name)
    if difference is None:
        return None
    value = f"{100 * difference['difference']:+.2f}"
    if "low" not in difference:
        return value
    mark = "*" if difference["low"] > 0 or difference["high"] < 0 else ""
    return f"{value} ({100 * difference['low']:+.2f} to {100 * difference['high']:+.2f}){mark}"


def print_groups(models: Sequence[Mapping[str, Any]], titles: Sequence[str]) -> None:
    """Print recall and precision of head, middle and tail labels at the largest common k."""
    rows = []
    for title, entry in zip(titles, models, strict=True):
        for group in reversed(entry["by_frequency"]):
            k = max(int(key.removeprefix("P@")) for key in group if key.startswith("P@"))
            limits = "-" if group["least"] is None else f"{group['least']:,}-{group['most']:,}"
            shares = (100 * group[f"{name}@{k}"] for name in ("recall", "precision"))
            rows.append(
                [title, group["group"], group["labels"], limits, k]
                + [f"{share:.1f}" for share in shares]
            )
    output.print_line("by frequency: groups with a third of the training positives each")
    headers = ["model", "group", "labels", "training rows", "k", "recall %", "precision %"]
    output.print_table(headers, rows)
