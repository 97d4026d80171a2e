"""Tables of evaluations: measures, trainings, differences, groups of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from xcray.cli.terminal import output

PARTS: Final = {"test": "test ", "train": "training "}
MAIN_MEASURES: Final = ("P", "nDCG", "PSP")  # of a short comparison


def print_evaluation(document: Mapping[str, Any]) -> None:
    """Print the tables of an evaluation: measures, differences, groups of labels."""
    from xcray.training.report.evaluation_pictures import MIN_CURVE_RANK, model_titles

    models = document["models"]
    titles = model_titles(models)
    names = list(dict.fromkeys(name for each in models for name in each["measures"]))
    rows = [[name, *(format_measure(each, name) for each in models)] for name in names]
    ranks = [rank for rank in models[0]["ranks"] if int(rank) >= MIN_CURVE_RANK]
    rows += [
        [f"true labels up to rank {rank}", *(f"{100 * each['ranks'][rank]:.2f}" for each in models)]
        for rank in ranks
        if all(rank in each["ranks"] for each in models)
    ]
    rows += [[name, *values] for name, values in training_rows(models).items()]
    rows.append(["ms per row", *(f"{each['ms_per_row']:.3f}" for each in models)])
    print_rows(document)
    output.print_table(["measure", *titles], rows)
    print_differences(models[1:], titles)
    print_groups(models, titles)
    print_values(models, titles)
    print_missing_labels(document, titles)


def print_comparison(document: Mapping[str, Any]) -> None:
    """Print the main measures of two models and their differences, in one table."""
    from xcray.training.report.evaluation_pictures import model_titles

    models = document["models"]
    titles = model_titles(models)
    rows = [
        [name, *(format_measure(each, name) for each in models), format_difference(models[1], name)]
        for name in models[1]["differences"]
        if name.partition("@")[0] in MAIN_MEASURES
    ]
    print_rows(document)
    output.print_table(["measure", *titles, "difference (*: the interval excludes 0)"], rows)
    print_missing_labels(document, titles)


def print_rows(document: Mapping[str, Any]) -> None:
    """Print which rows were evaluated, and the unit of the measures."""
    left_out = document["rows_without_labels"]
    part = PARTS.get(document["part"], "")
    output.print_line(
        f"{document['rows'] - left_out:,} {part}rows of {document['dataset']}"
        f"{f' ({left_out:,} without labels are left out)' if left_out else ''}; "
        "percent, with the half width of the 95 % interval"
    )


def print_missing_labels(document: Mapping[str, Any], titles: Sequence[str]) -> None:
    """Print how many labels of the rows each model lacks."""
    for title, each in zip(titles, document["models"], strict=True):
        if each.get("labels_missing"):
            output.print_note(
                f"{title} lacks {each['labels_missing']:,} of {document['labels']:,} labels; "
                "they count as misses"
            )


def training_rows(models: Sequence[Mapping[str, Any]]) -> dict[str, list[str | None]]:
    """Return the rows of a table about the trainings: what is known of at least one model."""
    rows: dict[str, list[str | None]] = {
        "solver": [each.get("solver") for each in models],
        "parameters": [
            " ".join(f"{name}={value}" for name, value in each.get("params", {}).items()) or None
            for each in models
        ],
        "trained in": [
            None if each.get("seconds") is None else f"{each['seconds']:,.1f} s" for each in models
        ],
        "core time": [
            None if each.get("core_seconds") is None else f"{each['core_seconds']:,.1f} s"
            for each in models
        ],
        "memory": [
            None if each.get("memory_bytes") is None else f"{each['memory_bytes'] / 2**20:,.0f} MiB"
            for each in models
        ],
        "weights": [f"{each['weights']:,}" for each in models],
    }
    return {name: values for name, values in rows.items() if any(values)}


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


def print_values(models: Sequence[Mapping[str, Any]], titles: Sequence[str]) -> None:
    """Print the measures at the largest k by the values of a field, if one was named."""
    values = models[0].get("by_value", ())
    if not values:
        return
    largest = max(int(name.partition("@")[2]) for name in values[0]["measures"])
    names = [name for name in values[0]["measures"] if name.endswith(f"@{largest}")]
    rows = [
        [title, group["value"] or "(empty)", f"{group['rows']:,}"]
        + [f"{100 * group['measures'][name]:.2f}" for name in names]
        for title, entry in zip(titles, models, strict=True)
        for group in entry["by_value"]
    ]
    output.print_table(["model", "value", "rows", *names], rows)


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


def print_gate(conditions: Sequence[Mapping[str, Any]]) -> None:
    """Print the conditions of a gate, and which of them hold."""
    for each in conditions:
        output.print_line(
            f"{'passed' if each['passed'] else 'FAILED'}: {each['measure']} >= "
            f"{each['least']:+g}, measured {each['difference']:+.2f}"
        )
