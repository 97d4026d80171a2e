"""Pictures of evaluations: measures, ranks of the true labels and costs of several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from xcray.plots.axes import axis_around, named_axis
from xcray.plots.marks import Panel, bars, lines, reference
from xcray.plots.picture import Picture

MIN_CURVE_RANK: Final = 10  # a curve of fewer ranks has no more than P@k


def evaluation_picture(document: Mapping[str, Any]) -> Picture:
    """Draw the measures of the models next to each other, with their intervals.

    document: from `evaluate_models`.
    """
    models = document["models"]
    names = list(dict.fromkeys(name for each in models for name in each["measures"]))
    series = [
        (title, [100 * each["measures"].get(name, 0.0) for name in names])
        for title, each in zip(model_titles(models), models, strict=True)
    ]
    drawn = bars(series)
    intervals = [
        reference("", (middle, 100 * interval["low"]), (middle, 100 * interval["high"]))
        for each, boxes in zip(models, drawn, strict=True)
        for name, box in zip(names, boxes.boxes, strict=True)
        if (interval := (each["intervals"] or {}).get(name))
        for middle in [(box.left + box.right) / 2]
    ]
    highest = max((value for _, values in series for value in values), default=1.0)
    panel = Panel(
        "Measures",
        named_axis("measure", names),
        axis_around("per cent", [0.0, highest], low=0.0),
        (*drawn, *intervals),
        240,
    )
    n_rows = document["rows"] - document["rows_without_labels"]
    note = f"{n_rows:,} {document['part']} rows; lines: 95 % bootstrap intervals"
    panels = (panel, *_rank_panel(models), *_cost_panel(models))
    return Picture(f"Models · {document['dataset']}", note, panels)


def _rank_panel(models: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return the panel of the ranks of true labels, if enough ranks were predicted for a curve."""
    most = max(int(rank) for each in models for rank in each["ranks"])
    if most < MIN_CURVE_RANK:
        return []
    curves = [
        (title, [(float(rank), 100 * share) for rank, share in each["ranks"].items()])
        for title, each in zip(model_titles(models), models, strict=True)
    ]
    horizontal = axis_around("rank", [1.0, float(most)], low=1.0, is_log=True)
    vertical = axis_around("per cent of true labels", [0.0, 100.0], low=0.0)
    return [Panel("Ranks of true labels", horizontal, vertical, lines(curves), 240)]


def _cost_panel(models: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return the panel of the trainings' cost, if that is known of every model."""
    costs = [each["core_seconds"] for each in models if each.get("core_seconds") is not None]
    if len(costs) < len(models):
        return []
    drawn = bars([(title, [cost]) for title, cost in zip(model_titles(models), costs, strict=True)])
    vertical = axis_around("core seconds", [0.0, *costs], low=0.0)
    return [Panel("Cost of training", named_axis("", ["training"]), vertical, tuple(drawn), 160)]


def model_titles(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the short names of the models of an evaluation, their paths if two are equal."""
    titles = [_model_title(each["model"]) for each in models]
    return titles if len(set(titles)) == len(titles) else [each["model"] for each in models]


def _model_title(path: str) -> str:
    """Return the short name of a model: its directory, or NAME:VERSION inside a registry."""
    place = Path(path).resolve()
    if place.parent.name == "versions":
        return f"{place.parent.parent.name}:{place.name}"
    return place.name
