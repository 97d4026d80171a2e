"""The model card: one page of Markdown that says what a model is, from its manifest alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NAMES = 10  # labels of a change that the card names

CARD = """\
# Model card

A linear model over {n_labels:,} labels and {n_features:,} features: `score = x . w + b`, one sparse `w` per label, the
labels with the highest scores are the answer. The search is exact; equal scores come in the order of label numbers.
{partial}
| | |
|---|---|
| solver | `{solver}` |
| trained | {created} with xcray {xcray} |
| data | `{dataset_hash}` (content hash of the data set) |
| input | {input} |
| labels x features | {n_labels:,} x {n_features:,} |
| weights that are not zero | {nnz:,} ({per_label:.1f} a label) |
| random seed | {seed} |
{certificates}| content | `{sha256}` |

## Measures

{measures}
{calibration}
## Parameters

{params}
{history}
## How to use it

```python
from xcray import Model, Predictor

predictor = Predictor(Model.open("DIRECTORY"))
predictor.named(predictor.predict({example}, k=5))
```

## Limits

- {scores}{probabilities}
- It knows the labels it was trained on, and answers with k of them even when none fits.
- Rare labels were seen a few times only; the propensity-scored measures (PSP@k), where given, say how it does on those.
- Words and habits of its training data are in its weights: `explain` shows which features made an answer.
"""


BRIER = ("brier", "brier_sigmoid", "brier_constant")
MARGINS = "Scores are margins, not probabilities; compare them within one query only."
LOGARITHMS = "Scores are logarithms of probabilities, but for a number that all labels of a row share: compare them within one query only."
SOFTMAX = """
## Probabilities

Softmax: the probability of a label is exp(its score) over the sum of exp(score) of all {n_labels:,} labels, found exactly for each
row. Those of all labels add up to one; they are what the training fitted, and are not corrected on held-out rows.
"""
PROBABILITIES = """
- Probabilities hold for rows like those they were fitted on; they do not reorder answers, and need not add up to one."""


def card(manifest: Mapping[str, Any]) -> str:
    """The card of the model with this manifest, as Markdown."""
    n_labels, n_features = manifest["shape"]
    return CARD.format(
        n_labels=n_labels,
        n_features=n_features,
        per_label=manifest["nnz"] / max(n_labels, 1),
        xcray=manifest["versions"]["xcray"],
        input="text, by the pipeline in `text/`"
        if manifest["text"]
        else "sparse rows of the training features",
        example='["some text"]' if manifest["text"] else "X",
        measures=_table(
            "measure",
            {name: _percent(value) for name, value in manifest["measures"].items()},
            "not measured",
        ),
        params=_table("parameter", manifest["params"], "none"),
        certificates=_certificates(manifest["report"], manifest["params"].get("eps")),
        calibration=_calibration(manifest["stages"][0]["calibration"])
        or (SOFTMAX.format(n_labels=n_labels) if manifest["link"] == "softmax" else ""),
        scores=LOGARITHMS if manifest["link"] == "softmax" else MARGINS,
        probabilities=PROBABILITIES if manifest["stages"][0]["calibration"] else "",
        partial=_partial(manifest.get("partial"), n_labels),
        history=_history(manifest.get("provenance", ())),
        **{
            name: manifest[name]
            for name in ("solver", "created", "dataset_hash", "nnz", "seed", "sha256")
        },
    )


def _certificates(report: Mapping[str, Any], eps: Any) -> str:
    """Rows that say how many classes are proven to be near their optimum, and how near; nothing where that is not recorded."""
    if "classes_certified" not in report or not isinstance(eps, float):
        return ""
    rows = {
        "classes certified by their duality gap": f"{report['classes_certified']:,} of {report['classes']:,}"
    }
    if isinstance(report.get("largest_gap"), float):
        rows["largest gap"] = (
            f"{report['largest_gap']:.2g} of the objective of predicting nothing; {eps:g} was asked for"
        )
    return "".join(f"| {name} | {value} |\n" for name, value in rows.items())


def _partial(partial: Mapping[str, Any] | None, n_labels: int) -> str:
    """What a model whose training ran out of time has to say; nothing for a whole one."""
    if not partial:
        return ""
    return f"""
> **A partial model.** Time was up before {partial["missing"]:,} of {n_labels:,} labels were trained: those of least value (fewest
> training rows). They have no weights and a bias of -1, so they are the last to be answered. Train again with the same run
> directory and more time to complete it.
"""


def _calibration(facts: Mapping[str, Any] | None) -> str:
    """What a calibrated model's probabilities are worth; nothing for others."""
    if not facts:
        return ""
    rows, bins, places = facts["rows"], facts["bins"], facts["places"]
    left = (
        f" ({rows['left_out']:,} that equal a training row were left out)"
        if rows["left_out"]
        else ""
    )
    groups = " and by place in the answer" if places else ""
    ranges = ", ".join(f"{b['least']:,} to {b['most']:,}: {b['labels']:,} labels" for b in bins)
    names = {
        "ece": "calibrated",
        "ece_sigmoid": "sigmoid of the score",
        "floor": "a perfect forecast",
    }
    lines = [
        f"| @{k} | "
        + " | ".join(
            [_percent(one[name]) for name in names] + [f"{one[name]:.4f}" for name in BRIER]
        )
        + " |"
        for k, one in facts["report"].items()
    ]
    head = (
        "| | "
        + " | ".join(f"ECE, {name}" for name in names.values())
        + " | Brier, calibrated | sigmoid | constant |"
    )
    return "\n".join(
        [
            "\n## Probabilities\n",
            f"How likely an answered label is right: isotonic regression on {rows['fitted']:,} held-out rows{left}, measured on "
            f"{rows['measured']:,} others. Labels share curves by training rows ({ranges}){groups}.\n",
            *(head, "|" + "---|" * (len(names) + 4), *lines),
            "\nECE: mean difference of probability and share right, in groups of equal mass. Data "
            f"`{str(facts.get('dataset_hash', ''))[:16]}`, scores of `{facts['model'][:16]}`.\n",
        ]
    )


def _history(steps: Sequence[Mapping[str, Any]]) -> str:
    """What was done to earlier models to make this one; nothing when it was trained at once."""
    if not steps:
        return ""
    lines = [f"{number}. {_step(step)}" for number, step in enumerate(steps, 1)]
    return (
        "\n## History\n\nMade from an earlier model; the columns of all other labels are that model's, byte for byte.\n\n"
        + ("\n".join(lines) + "\n")
    )


def _step(step: Mapping[str, Any]) -> str:
    """One change of labels in a line: what, of how many labels, the first of them, from which model, on which data."""
    names = step.get("labels") or [f"{old} -> {new}" for old, new in step.get("names", ())]
    count = step.get("n_labels", step.get("n_names", len(names)))
    shown = ", ".join(f"`{_cell(name).replace('`', '')}`" for name in names[:NAMES]) + (
        ", ..." if count > NAMES else ""
    )
    into = f" into `{_cell(step['into']).replace('`', '')}`" if "into" in step else ""
    data = f", on data `{step['dataset_hash'][:16]}`" if "dataset_hash" in step else ""
    return f"{step['operation']} {count:,} label{'s' if count != 1 else ''} ({shown}){into}, from `{step['parent'][:16]}`{data}"


def _table(head: str, rows: Mapping[str, Any], none: str) -> str:
    """Two columns of Markdown, or `none` when there is nothing to show."""
    lines = [
        f"| {head} | value |",
        "|---|---|",
        *(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()),
    ]
    return "\n".join(lines) if rows else f"({none})"


def _cell(value: Any) -> str:
    """A value that can't break the table."""
    return str(value).replace("|", "\\|").replace("\n", " ")


def _percent(value: Any) -> str:
    """A fraction as per cent; anything else as it is."""
    return f"{100 * value:.2f} %" if isinstance(value, float) and 0 <= value <= 1 else str(value)
