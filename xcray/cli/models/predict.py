"""`xcray predict` and `xcray explain`: ask a model directory here, or a model of a server."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from xcray.cli.service.connect import ServerChoice, client_of
from xcray.cli.terminal import output
from xcray.errors import InputError

if TYPE_CHECKING:
    from xcray.arrays import CSR
    from xcray.model.model import Model
    from xcray.predict import Sets

PROOF = ("exact", "labels_scored", "postings_read", "bound_gap")
BATCH = 256  # instances of one request to a server

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A model directory, or NAME, NAME:VERSION, NAME@ALIAS of a server."
    ),
]
Allowed = Annotated[
    list[str] | None,
    typer.Option(metavar="LABEL", help="Answer only this label, or those of set:NAME; repeat it."),
]
Denied = Annotated[
    list[str] | None,
    typer.Option(metavar="LABEL", help="Never answer this label, or those of set:NAME; repeat it."),
]
WithProbabilities = Annotated[
    bool,
    typer.Option(
        "--probabilities", help="How likely each label is right (calibrated and softmax models)."
    ),
]


def is_directory(model: str, server: str | None) -> bool:
    """Whether to answer here: a directory was named and no server."""
    return server is None and (Path(model) / "manifest.json").is_file()


class Wanted(NamedTuple):
    """How to answer: how many labels, among which, in what time, and what to tell of them."""

    k: int
    allow: list[str] | None
    deny: list[str] | None
    deadline_ms: float | None
    probabilities: bool
    certificate: bool


def predict(
    model: ModelName,
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="Texts; without any, lines of standard input."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Rows of an svmlight file instead of texts.")
    ] = None,
    zero_based: Annotated[
        bool, typer.Option("--zero-based", help="The file's feature indices start at 0.")
    ] = False,
    k: Annotated[int, typer.Option("-k", min=1, help="How many labels for each.")] = 5,
    allow: Allowed = None,
    deny: Denied = None,
    deadline_ms: Annotated[
        float | None,
        typer.Option(metavar="MS", help="Time for the answers; then the best found so far."),
    ] = None,
    probabilities: WithProbabilities = False,
    certificate: Annotated[
        bool, typer.Option("--certificate", help="Whether each answer is proven, and what it took.")
    ] = False,
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """The best labels with their scores, best first."""
    if file is not None and text:
        raise InputError("give texts or --file, not both", code="USAGE")
    wanted = Wanted(k, allow or None, deny or None, deadline_ms, probabilities, certificate)
    if is_directory(model, server):
        answers = predict_here(model, text, file, zero_based, wanted)
    else:
        answers = predict_there(model, text, file, zero_based, wanted, server)
    if json:
        output.emit({"model": model, "predictions": list(answers)})
        return
    for answer in answers:
        show_answer(answer)


def predict_here(
    model: str, text: list[str] | None, file: Path | None, zero_based: bool, wanted: Wanted
) -> Iterator[dict[str, Any]]:
    """Answers of a model directory; sets are known when it lies in a registry."""
    from xcray.model.model import Model
    from xcray.predict import Predictor

    opened = Model.open(model, verify=False)
    predictor = Predictor(opened)
    rows: Any = texts_of(text) if file is None else rows_of(file, zero_based, opened)
    names = rows if isinstance(rows, list) else [f"row {i + 1}" for i in range(rows.n_rows)]
    among = predictor.filter(wanted.allow, wanted.deny, sets=sets_around(Path(model)))
    answer = predictor.answer(
        rows,
        wanted.k,
        deadline_ms=wanted.deadline_ms,
        allow=among,
        probabilities=wanted.probabilities,
    )
    told = (
        predictor.probabilities(answer, filtered=among is not None).tolist()
        if wanted.probabilities
        else None
    )
    for i, (name, scored) in enumerate(zip(names, predictor.named(answer.top), strict=True)):
        proof = (
            {part: getattr(answer, part)[i].item() for part in PROOF}
            if wanted.certificate
            else None
        )
        yield entry(
            name,
            [one.label for one in scored],
            [one.score for one in scored],
            told and told[i],
            proof,
        )


def sets_around(model: Path) -> Sets | None:
    """The sets of a model directory that is a version in a registry: root/NAME/versions/N."""
    from xcray.model.registry import Registry

    versions = model.resolve().parent
    return (
        Registry(versions.parent.parent).sets(versions.parent.name)
        if versions.name == "versions"
        else None
    )


def entry(
    name: str,
    labels: list[str],
    scores: list[float],
    probabilities: list[float] | None,
    proof: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """One answer as it is told."""
    found = [{"label": label, "score": score} for label, score in zip(labels, scores, strict=True)]
    for one, probability in zip(found, probabilities or (), strict=False):
        one["probability"] = probability
    return {
        "input": name,
        "labels": found,
        **({"certificate": dict(proof)} if proof is not None else {}),
    }


def predict_there(
    model: str,
    text: list[str] | None,
    file: Path | None,
    zero_based: bool,
    wanted: Wanted,
    server: str | None,
) -> Iterator[dict[str, Any]]:
    """Answers of a server, a batch of instances a request."""
    if file is None:
        texts = texts_of(text)
        named = [(each, {"text": each}) for each in texts]
    else:
        named = [
            (f"row {i + 1}", row)
            for i, row in enumerate(instances_of(rows_of(file, zero_based, None)))
        ]
    how = {name: value for name, value in wanted._asdict().items() if name != "k"}
    with client_of(server) as client:
        for start in range(0, len(named), BATCH):
            batch = named[start : start + BATCH]
            reply = client.predict(
                model, [instance for _, instance in batch], top_k=wanted.k, **how
            )
            for (name, _), found in zip(batch, reply["predictions"], strict=True):
                yield entry(
                    name,
                    found["labels"],
                    found["scores"],
                    found.get("probabilities"),
                    found.get("certificate"),
                )


def texts_of(given: Sequence[str] | None) -> list[str]:
    """The texts of the command line, else the lines of standard input. Raises InputError when there are none."""
    if given:
        return list(given)
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError(
            "give at least one text: xcray predict MODEL 'read rows of a csv file'", code="USAGE"
        )
    lines = [line.rstrip("\r\n") for line in sys.stdin]
    if not lines:
        raise InputError("standard input is empty; give texts, one a line", code="USAGE")
    return lines


def rows_of(file: Path, zero_based: bool, model: Model | None) -> CSR:
    """The rows of an svmlight file, as wide as the model when it is known. Raises DataError with file and line."""
    import numpy as np

    from xcray.arrays import csr
    from xcray.data.readers.error_log import Tally
    from xcray.data.readers.options import ReadOptions
    from xcray.data.readers.svmlight import read_svmlight

    width = None if model is None else model.n_features
    chunks = [
        X
        for X, _ in read_svmlight(
            file, ReadOptions(zero_based=zero_based, n_features=width), Tally()
        )
    ]
    lengths = np.concatenate([np.diff(X.indptr) for X in chunks])
    columns, values = (
        np.concatenate([X.indices for X in chunks]),
        np.concatenate([X.data for X in chunks]),
    )
    return csr(
        np.concatenate([[0], np.cumsum(lengths)]),
        columns,
        values,
        width or max(X.n_cols for X in chunks),
    )


def instances_of(rows: CSR) -> list[dict[str, Any]]:
    """Rows as a request carries them."""
    pairs = (rows.row(i) for i in range(rows.n_rows))
    return [
        {"indices": indices.tolist(), "values": [float(value) for value in values]}
        for indices, values in pairs
    ]


def show_answer(answer: dict[str, Any]) -> None:
    """The input, and its labels below."""
    output.say(answer["input"])
    for place, found in enumerate(answer["labels"], 1):
        likely = f"  {100 * found['probability']:>5.1f} %" if "probability" in found else ""
        output.say(f"  {place:>2}  {found['score']:>9.4f}{likely}  {found['label']}")
    if "certificate" in answer:
        output.say(f"      {proof_line(answer['certificate'])}")


def proof_line(proof: Mapping[str, Any]) -> str:
    """A certificate in a line."""
    gap = proof["bound_gap"]
    known = gap is not None and math.isfinite(gap)
    if proof["exact"]:
        what = (
            f"exact: no other label comes nearer than {gap:.4f}"
            if known
            else "exact: no other label is allowed"
        )
    else:
        what = (
            f"time was up: a label left out may be better by {-gap:.4f}"
            if known
            else "time was up: nothing is proven"
        )
    return (
        f"{what}; {proof['labels_scored']:,} labels scored, {proof['postings_read']:,} weights read"
    )


def explain(
    model: ModelName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="One text.")],
    label: Annotated[
        str | None,
        typer.Option("--label", "-l", help="Explain this label. [default: the best one]"),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many features to show.")] = 10,
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """Which words made the score of a label: what each adds, largest first."""
    found = (
        explain_here(model, text, label, top)
        if is_directory(model, server)
        else explain_there(model, text, label, top, server)
    )
    if json:
        output.emit(found)
    else:
        show_explanation(found)


def explain_here(model: str, text: str, label: str | None, top: int) -> dict[str, Any]:
    """An explanation by a model directory."""
    from xcray.model.model import Model
    from xcray.predict import Predictor

    predictor = Predictor(Model.open(model, verify=False))
    chosen: int | str = int(predictor.predict([text], 1).labels[0, 0]) if label is None else label
    found = predictor.explain(text, chosen, top).as_dict()
    found["label"] = found.pop("name")
    return found


def explain_there(
    model: str, text: str, label: str | None, top: int, server: str | None
) -> dict[str, Any]:
    """An explanation by a server."""
    with client_of(server) as client:
        return dict(client.explain(model, text, label=label, top=top))


def show_explanation(found: dict[str, Any]) -> None:
    """The score as a sum."""
    rank = f", rank {found['rank']:,}" if found.get("rank") else ""
    output.say(f"{found['label']}: score {found['score']:.4f}{rank}")
    for part in found["contributions"]:
        output.say(f"  {part['contribution']:>+9.4f}  {part['feature']}")
    if found.get("n_rest"):
        output.say(f"  {found['rest']:>+9.4f}  {found['n_rest']} more")
    output.say(f"  {found['bias']:>+9.4f}  (bias)")
    if found.get("gap_to_top"):
        output.say(f"it lacks {found['gap_to_top']:.4f} to the best label")
