"""The model card: one page of Markdown that describes a model, made from its manifest alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_NAMES = 10  # labels listed per edit

CARD = """\
# Model card

{structure} The labels with the highest scores are predicted. The
search is exact; equal scores are ordered by label number.
{partial}
| | |
|---|---|
| solver | `{solver}` |
| trained | {created} with xcray {xcray} |
| data | `{dataset_hash}` (content hash of the data set) |
| input | {input} |
| labels x features | {n_labels:,} x {n_features:,} |
| nonzero weights | {nnz:,} ({per_label:.1f} per label) |
| random seed | {seed} |
{certificates}| content | `{sha256}` |

## Measures

{measures}
{calibration}{decisions}
## Parameters

{params}
{history}
## How to use it

```python
from xcray import Predictor

predictor = Predictor("DIRECTORY")
predictor.scored_labels(predictor.predict({example}, k=5))
```

## Limits

- {scores}{probabilities}
- It can only predict labels of its training data, and returns k of them even if none fits.
- Rare labels have few training rows; the propensity-scored measures (PSP@k), if given, show the
  quality on them.
- {biases}
"""
# by whether the model is a chain of stages
STRUCTURES = {
    False: "A linear model over {n_labels:,} labels and {n_features:,} features: "
    "`score = x . w + b`, one\nsparse `w` per label.",
    True: "A chain of {n_stages:,} stages over {n_labels:,} labels and {n_features:,} inputs. Each "
    "stage adds\n`F(x) W + b` to the scores of the one before, and can calibrate them.",
}
GROUPS = """ Similar labels share evidence: added to the score
of a label is {weight:g} times the mean score of its groups, of {n:,} in all (sizes {sizes}), which
are trained like labels ({nnz:,} weights)."""
BIASES = {
    False: "Its weights reflect the words and biases of its training data: `explain` shows which "
    "features\n  contributed to a prediction.",
    True: "Its weights reflect the biases of its training data.",
}


BRIER = ("brier", "brier_sigmoid", "brier_constant")
MARGINS = "Scores are margins, not probabilities; compare them within one query only."
LOGARITHMS = (
    "Scores are logarithms of probabilities, but for a number that all labels of a row "
    "share: compare them within one query only."
)
SCORES = {
    "identity": MARGINS,
    "softmax": LOGARITHMS,
    "probability": "Scores are probabilities that add up to one over all labels. They are those of "
    "the training, without calibration on held-out rows.",
}
SOFTMAX = """
## Probabilities

Softmax: the probability of a label is exp(its score) over the sum of exp(score) of all
{n_labels:,} labels, computed exactly per row. The probabilities of all labels add up to one. They
are those of the training, without calibration on held-out rows.
"""
PROBABILITIES = """
- Probabilities are valid for rows like those they were fitted on. They do not reorder predictions,
  and do not always add up to one."""


def render_card(manifest: Mapping[str, Any]) -> str:
    """Return the card of the model with this manifest, as Markdown."""
    n_labels, n_features = manifest["shape"]
    n_stages, is_chain = len(manifest["stages"]), "weights" not in manifest["stages"][0]
    structure = STRUCTURES[is_chain].format(
        n_labels=n_labels, n_features=n_features, n_stages=n_stages
    )
    groups = manifest["stages"][0].get("groups")
    if groups:
        structure += GROUPS.format(n=sum(groups["sizes"]), **groups)
    return CARD.format(
        structure=structure,
        biases=BIASES[is_chain],
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
        certificates=_certificate_rows(manifest["report"], manifest["params"].get("eps")),
        calibration=_calibration_section(manifest["stages"][0]["calibration"])
        or (SOFTMAX.format(n_labels=n_labels) if manifest["link"] == "softmax" else ""),
        scores=SCORES[manifest["link"]],
        decisions=_decision_section(manifest.get("label_thresholds")),
        probabilities=PROBABILITIES if manifest["stages"][0]["calibration"] else "",
        partial=_partial_note(manifest.get("partial"), n_labels),
        history=_history_section(manifest.get("provenance", ())),
        **{
            name: manifest[name]
            for name in ("solver", "created", "dataset_hash", "nnz", "seed", "sha256")
        },
    )


def render_card_file(manifest: Mapping[str, Any]) -> str:
    """Return the card after the metadata that the Hugging Face hub reads (YAML), for a file.

    Measures are those of the held-out rows of the data set with this content hash.
    """
    lines = ["---", "library_name: xcray", "tags: [extreme-classification, multi-label]"]
    if manifest["text"]:
        lines.append("pipeline_tag: text-classification")
    measures = {name: value for name, value in manifest["measures"].items() if "@" in name}
    if measures:
        data = manifest["dataset_hash"]
        lines += [
            "model-index:",
            f"- name: {manifest['solver']}",
            "  results:",
            "  - task: {type: text-classification}",
            f'    dataset: {{type: xcray, name: "{data[:12]}", revision: "{data}"}}',
            "    metrics:",
            *(f'    - {{type: "{name}", value: {value:.6g}}}' for name, value in measures.items()),
        ]
    return "\n".join([*lines, "---", "", render_card(manifest)])


def _certificate_rows(report: Mapping[str, Any], eps: Any) -> str:
    """Return table rows on the certified labels and their gap; "" if they were not recorded."""
    if "labels_certified" not in report or not isinstance(eps, float):
        return ""
    rows = {
        "labels certified by their duality gap": f"{report['labels_certified']:,} of "
        f"{report['labels']:,}"
    }
    if isinstance(report.get("largest_gap"), float):
        rows["largest gap"] = (
            f"{report['largest_gap']:.2g} of the objective of predicting nothing; "
            f"{eps:g} was required"
        )
    groups = report.get("groups", {})
    if "labels_certified" in groups:
        rows["label groups certified"] = f"{groups['labels_certified']:,} of {groups['labels']:,}"
    if groups.get("joined_later"):
        rows["labels that joined groups after their training"] = f"{groups['joined_later']:,}"
    return "".join(f"| {name} | {value} |\n" for name, value in rows.items())


def _partial_note(partial: Mapping[str, Any] | None, n_labels: int) -> str:
    """Return the note on a model whose training ran out of time; "" for a complete model."""
    if not partial:
        return ""
    return f"""
> **A partial model.** The time limit was reached before {partial["missing"]:,} of {n_labels:,}
> labels were trained: those with the fewest training rows. They have no weights and a bias of -1,
> so they are predicted last. Train again with the same run directory and more time to complete it.
"""


def _calibration_section(report: Mapping[str, Any] | None) -> str:
    """Return the section on a calibrated model's probabilities; "" for other models."""
    if not report:
        return ""
    rows, bins, places = report["rows"], report["bins"], report["places"]
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
        for k, one in report["report"].items()
    ]
    head = (
        "| | "
        + " | ".join(f"ECE, {name}" for name in names.values())
        + " | Brier, calibrated | sigmoid | constant |"
    )
    return "\n".join(
        [
            "\n## Probabilities\n",
            "Probability that a predicted label is correct: "
            f"isotonic regression on {rows['fitted']:,} held-out rows{left}, measured on "
            f"{rows['measured']:,} others. Labels share curves by training rows "
            f"({ranges}){groups}.\n",
            *(head, "|" + "---|" * (len(names) + 4), *lines),
            "\nECE: mean difference of probability and share right, in groups of equal mass. Data "
            f"`{str(report.get('dataset_hash', ''))[:16]}`, scores of `{report['model'][:16]}`.\n",
        ]
    )


def _decision_section(fitted: Mapping[str, Any] | None) -> str:
    """Return the section on the thresholds per label of a model; "" without them."""
    if fitted is None:
        return ""
    goal = f" of {fitted['precision']:g}" if fitted["precision"] is not None else ""
    measures = {name: _percent(value) for name, value in fitted["measures"].items()}
    return (
        f"\n## Decisions\n\nThresholds per label for {fitted['objective']}{goal}, fitted on "
        f"{fitted['rows']['fitted']:,} held-out rows; measured by cross validation on them:\n\n"
        + _table("measure", {**measures, "labels per row": f"{fitted['labels_per_row']:.2f}"}, "")
        + "\n"
    )


def _history_section(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the section on the edits that made this model; "" if there are none."""
    if not steps:
        return ""
    lines = [f"{number}. {_describe_step(step)}" for number, step in enumerate(steps, 1)]
    return (
        "\n## History\n\nDerived from an earlier model; "
        "the columns of all other labels are that model's, byte for byte.\n\n"
        + ("\n".join(lines) + "\n")
    )


def _describe_step(step: Mapping[str, Any]) -> str:
    """Return one line per edit: operation, number of labels, first labels, parent model, data."""
    if step["operation"] == "update":
        solved, new = step["solved"], step["new"]
        return (
            f"update to the rows of data `{step['dataset_hash'][:16]}`: {step['untouched']:,} "
            f"labels untouched, {solved:,} solved again, {new:,} new, from `{step['parent'][:16]}`"
        )
    names = step.get("labels") or [f"{old} -> {new}" for old, new in step.get("names", ())]
    count = step.get("n_labels", step.get("n_names", len(names)))
    shown = ", ".join(f"`{_cell(name).replace('`', '')}`" for name in names[:MAX_NAMES]) + (
        ", ..." if count > MAX_NAMES else ""
    )
    into = f" into `{_cell(step['into']).replace('`', '')}`" if "into" in step else ""
    data = f", on data `{step['dataset_hash'][:16]}`" if "dataset_hash" in step else ""
    return (
        f"{step['operation']} {count:,} label{'s' if count != 1 else ''} ({shown}){into}, "
        f"from `{step['parent'][:16]}`{data}"
    )


def _table(head: str, rows: Mapping[str, Any], none: str) -> str:
    """Return a Markdown table of two columns, or `none` in brackets if it is empty."""
    lines = [
        f"| {head} | value |",
        "|---|---|",
        *(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()),
    ]
    return "\n".join(lines) if rows else f"({none})"


def _cell(value: Any) -> str:
    """Return a value escaped for a table cell."""
    return str(value).replace("|", "\\|").replace("\n", " ")


def _percent(value: Any) -> str:
    """Return a fraction as per cent; any other value as it is."""
    return f"{100 * value:.2f} %" if isinstance(value, float) and 0 <= value <= 1 else str(value)
