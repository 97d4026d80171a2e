"""`xcray explain`: the features that contribute to the score of a label."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from xcray.cli.connect import ServerOption, model_client
from xcray.cli.models.open_model import open_model
from xcray.cli.models.predict import (
    FieldOption,
    Input,
    ModelName,
    as_instance,
    is_directory,
    read_inputs,
)
from xcray.cli.terminal import output
from xcray.errors import InputError


def explain(
    model: ModelName,
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="Text to explain, or use --field.")
    ] = None,
    field: FieldOption = None,
    label: Annotated[
        str | None,
        typer.Option("--label", "-l", help="Label to explain; default: the best one."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of features to show.")] = 10,
    server: ServerOption = None,
) -> None:
    """Show the features that contribute most to the score of a label, largest first.

    Example: xcray explain MODEL "the printer needs paper" --label paper
    """
    if bool(text) == bool(field):
        raise InputError("give a text or --field", code="USAGE")
    row = read_inputs([text] if text else None, field)[0]
    if is_directory(model, server):
        from xcray.cli.terminal.compilation import compilation_note

        with compilation_note():
            explanation = explain_local(model, row, label, top)
    else:
        explanation = explain_remote(model, row, label, top, server)
    output.print_json(explanation)
    print_explanation(explanation)


def explain_local(model: str, row: Input, label: str | None, top: int) -> dict[str, Any]:
    """Return an explanation of a model directory."""
    from xcray.predict import Predictor

    opened = open_model(model)
    predictor = Predictor(opened)
    chosen: int | str = int(predictor.search(row, 1).labels[0, 0]) if label is None else label
    explanation = predictor.explain(row, chosen, top).as_dict()
    number, explanation["label"] = explanation["label"], explanation.pop("name")
    if opened.display_names is not None:
        explanation["name"] = opened.display_names[number]
    return explanation


def explain_remote(
    model: str, row: Input, label: str | None, top: int, server: str | None
) -> dict[str, Any]:
    """Return an explanation of a server."""
    with model_client(server, model) as client:
        return dict(client.explain(model, as_instance(row), label=label, top=top))


def print_explanation(explanation: dict[str, Any]) -> None:
    """Print the score as a sum of contributions."""
    rank = f", rank {explanation['rank']:,}" if explanation.get("rank") else ""
    name = f" {explanation['name']}" if "name" in explanation else ""
    output.print_line(f"{explanation['label']}{name}: score {explanation['score']:.4f}{rank}")
    for part in explanation["contributions"]:
        output.print_line(f"  {part['contribution']:>+9.4f}  {part['feature']}")
    if explanation.get("n_rest"):
        output.print_line(f"  {explanation['rest']:>+9.4f}  {explanation['n_rest']} more")
    output.print_line(f"  {explanation['bias']:>+9.4f}  (bias)")
    for group in explanation["groups"]:
        dots = ", ..." if group["n_labels"] > len(group["labels"]) else ""
        words = ", ".join(part["feature"] for part in group["contributions"][:3])
        output.print_line(
            f"  {group['contribution']:>+9.4f}  (group of {group['n_labels']} labels: "
            f"{', '.join(group['labels'])}{dots}{'; by ' + words if words else ''})"
        )
    if explanation.get("gap_to_top"):
        output.print_line(f"{explanation['gap_to_top']:.4f} below the best label")
    if "ranking" in explanation:
        ranking = explanation["ranking"]
        output.print_line(
            f"ranker: place {ranking['place']}, probability {100 * ranking['probability']:.1f} %"
        )
        for feature, value in ranking["features"].items():
            if value is not None:
                output.print_line(f"  {value:>9.4f}  {feature}")
