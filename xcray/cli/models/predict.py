"""`xcray predict`: predictions of a model directory or a model on a server."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

from xcray.api.options import ThresholdOptions
from xcray.cli.connect import ServerOption, locate_version, model_client
from xcray.cli.models.open_model import open_model
from xcray.cli.terminal import output
from xcray.cli.terminal.completion import complete_models
from xcray.cli.terminal.declared_options import Options, with_options
from xcray.errors import DataError, InputError

if TYPE_CHECKING:
    from xcray.arrays import CSR
    from xcray.predict import SetLookup

CERTIFICATE_FIELDS = ("exact", "labels_scored", "postings_read", "bound_gap")
BATCH_ROWS = 256  # instances of one request to a server

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model directory, or NAME, NAME:VERSION, NAME@ALIAS on a server.",
        autocompletion=complete_models,
    ),
]
FieldOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="A field of one document in place of texts, like title='Reading rows'. Repeatable.",
    ),
]
Input: TypeAlias = str | dict[str, str]  # a text, or a document by fields
AllowOption = Annotated[
    list[str] | None,
    typer.Option(metavar="LABEL", help="Allow only this label, or those of set:NAME. Repeatable."),
]
DenyOption = Annotated[
    list[str] | None,
    typer.Option(metavar="LABEL", help="Exclude this label, or those of set:NAME. Repeatable."),
]
ProbabilitiesOption = Annotated[
    bool,
    typer.Option(
        "--probabilities",
        help="Print the probability of each label (calibrated and softmax models).",
    ),
]


def is_directory(model: str, server: str | None) -> bool:
    """Return whether to predict locally: a model directory and no server were given."""
    return server is None and (Path(model) / "manifest.json").is_file()


class PredictOptions(NamedTuple):
    """Options of a prediction: number of labels, filters, deadline, and additional output.

    thresholds: those of ThresholdOptions that were given.
    """

    k: int
    allow: list[str] | None
    deny: list[str] | None
    deadline_ms: float | None
    probabilities: bool
    certificate: bool
    thresholds: Options

    @property
    def needs_probabilities(self) -> bool:
        """Return whether probabilities are computed, for the output or for their threshold."""
        return self.probabilities or "min_probability" in self.thresholds


@with_options(ThresholdOptions)
def predict(
    model: ModelName,
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="Texts; default: lines of standard input."),
    ] = None,
    field: FieldOption = None,
    file: Annotated[
        Path | None, typer.Option(help="svmlight file with rows instead of texts.")
    ] = None,
    zero_based: Annotated[
        bool, typer.Option("--zero-based", help="Feature indices of the file start at 0.")
    ] = False,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of labels per input.")] = 5,
    allow: AllowOption = None,
    deny: DenyOption = None,
    *,
    options: Options,
    deadline_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            help="Time limit in milliseconds; after it the best labels found so far are printed.",
        ),
    ] = None,
    probabilities: ProbabilitiesOption = False,
    certificate: Annotated[
        bool,
        typer.Option(
            "--certificate", help="Print whether each prediction is proven exact, and its cost."
        ),
    ] = False,
    server: ServerOption = None,
) -> None:
    """Predict the best labels with their scores, best first.

    Example: xcray predict MODEL "the printer needs paper" -k 3
    """
    if sum(map(bool, (text, field, file))) > 1:
        raise InputError("give texts, --field or --file, not two of them", code="USAGE")
    inputs = read_inputs(text, field) if file is None else []
    how = PredictOptions(
        k, allow or None, deny or None, deadline_ms, probabilities, certificate, options
    )
    warnings: list[dict[str, Any]] = []
    if not is_directory(model, server):
        answers = predict_remote(model, inputs, file, zero_based, how, warnings, server)
        print_predictions(model, answers, warnings)
        return
    from xcray.cli.terminal.compilation import compilation_note

    with compilation_note():
        answers = predict_local(model, inputs, file, zero_based, how, warnings)
        print_predictions(model, answers, warnings)


def print_predictions(
    model: str, answers: Iterator[dict[str, Any]], warnings: list[dict[str, Any]]
) -> None:
    """Print predictions as they come, or as one document; then the warnings."""
    if output.is_json():
        document = {"model": model, "predictions": list(answers)}
        output.print_json({**document, **({"warnings": warnings} if warnings else {})})
        return
    for answer in answers:
        print_prediction(answer)
    output.print_warnings(warnings)


def predict_local(
    model: str,
    inputs: list[Input],
    file: Path | None,
    zero_based: bool,
    options: PredictOptions,
    warnings: list[dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Yield predictions of a model directory; label sets are available inside a registry.

    warnings: receives warnings about the inputs.
    """
    from xcray.data.text.fields import document
    from xcray.predict import Predictor
    from xcray.predict.input_warnings import count_inputs, input_warnings

    opened = open_model(model)
    predictor = Predictor(opened)
    rows: Any = (
        [each if isinstance(each, str) else document(each, opened.text_fields) for each in inputs]
        if file is None
        else read_rows(file, zero_based, opened.n_features, opened.first_index)
    )
    names = inputs if isinstance(rows, list) else [f"row {i + 1}" for i in range(rows.n_rows)]
    among = predictor.filter(options.allow, options.deny, sets=find_label_sets(Path(model)))
    encoded = predictor.encode(rows)
    warnings += input_warnings(count_inputs(rows, predictor.features(encoded), opened.text))
    answer = predictor.search(
        encoded,
        options.k,
        deadline_ms=options.deadline_ms,
        allow=among,
        probabilities=options.needs_probabilities,
    )
    probabilities = (
        predictor.probabilities(answer, filtered=among is not None)
        if options.needs_probabilities
        else None
    )
    shown = ["label", "score"] + ["probability"] * options.probabilities
    shown += ["name"] * (opened.display_names is not None) + ["origin"] * answer.is_ranked
    rows_of_labels = predictor.scored_labels(answer, probabilities, **options.thresholds)
    for i, (name, scored) in enumerate(zip(names, rows_of_labels, strict=True)):
        proof = (
            {part: getattr(answer, part)[i].item() for part in CERTIFICATE_FIELDS}
            if options.certificate
            else None
        )
        yield entry(name, {column: [*map(attrgetter(column), scored)] for column in shown}, proof)


def find_label_sets(model: Path) -> SetLookup | None:
    """Return the label sets of a model directory inside a registry: root/NAME/versions/N."""
    from xcray.model.registry import Registry

    versions = model.resolve().parent
    return (
        Registry(versions.parent.parent).label_sets(versions.parent.name)
        if versions.name == "versions"
        else None
    )


def entry(
    name: Input,
    columns: Mapping[str, Sequence[Any] | None],
    proof: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return one prediction as JSON. columns: values of all labels by name; None leaves one out."""
    present = {column: values for column, values in columns.items() if values is not None}
    best = [dict(zip(present, row, strict=True)) for row in zip(*present.values(), strict=True)]
    return {
        "input": name,
        "labels": best,
        **({"certificate": dict(proof)} if proof is not None else {}),
    }


def predict_remote(
    model: str,
    inputs: list[Input],
    file: Path | None,
    zero_based: bool,
    options: PredictOptions,
    warnings: list[dict[str, Any]],
    server: str | None,
) -> Iterator[dict[str, Any]]:
    """Yield predictions of a server, one batch of instances per request.

    warnings: receives a warning about rows without a feature, summed over the requests.
    """
    from xcray.predict.input_warnings import empty_rows_warning

    n_empty = 0
    how = {**options._asdict(), **options.thresholds}
    del how["k"], how["thresholds"]
    with model_client(server, model) as client:
        named: list[tuple[Input, dict[str, Any]]] = [(each, as_instance(each)) for each in inputs]
        if file is not None:
            version = client.models.version(*locate_version(client, model))
            first_index = version["reading"].get("first_index")
            rows = read_rows(file, zero_based, version["n_features"], first_index)
            named = [(f"row {i + 1}", row) for i, row in enumerate(to_instances(rows))]
        for start in range(0, len(named), BATCH_ROWS):
            batch = named[start : start + BATCH_ROWS]
            reply = client.predict(
                model, [instance for _, instance in batch], top_k=options.k, **how
            )
            n_empty += sum(len(each["instances"]) for each in reply.get("warnings", ()))
            for (name, _), prediction in zip(batch, reply["predictions"], strict=True):
                yield entry(
                    name,
                    {
                        "label": prediction["labels"],
                        "score": prediction["scores"],
                        "probability": prediction.get("probabilities"),
                        "name": prediction.get("names"),
                        "origin": prediction.get("origins"),
                    },
                    prediction.get("certificate"),
                )
    if n_empty:
        warnings.append(empty_rows_warning(len(named), n_empty))


def as_instance(row: Input) -> dict[str, Any]:
    """Return an instance of a request."""
    return {"text": row} if isinstance(row, str) else {"fields": row}


def read_inputs(texts: Sequence[str] | None, field: Sequence[str] | None) -> list[Input]:
    """Return the document of --field, else the texts. Raises as `read_texts`."""
    if field:
        return [output.parse_assignments(field, example="title='Reading rows'")]
    return [*read_texts(texts)]


def read_texts(texts: Sequence[str] | None) -> list[str]:
    """Return the texts of the arguments, else or for `-` the lines of standard input.

    Raises InputError if there are none.
    """
    if texts and list(texts) != ["-"]:
        if len(texts) == 1 and Path(texts[0]).is_file():
            output.print_note(
                f"{texts[0]!r} is taken as a text; the lines of the file: "
                f"xcray predict MODEL < {texts[0]}; many rows: xcray predict-batch"
            )
        return list(texts)
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError(
            "give at least one text: xcray predict MODEL 'read rows of a csv file'", code="USAGE"
        )
    lines = [line.rstrip("\r\n") for line in sys.stdin]
    if not lines:
        raise InputError("standard input is empty; give texts, one per line", code="USAGE")
    return lines


def read_rows(file: Path, zero_based: bool, n_features: int, first_index: int | None) -> CSR:
    """Read the rows of an svmlight file as those of a model's data.

    n_features, first_index: of the model. Raises DataError with file and line, ParameterError if
    the first index is another one.
    """
    from xcray.arrays import stack_rows
    from xcray.batch.spec import COMPRESSED_SUFFIXES
    from xcray.data.feature_space import reads_zero_based
    from xcray.data.readers.error_log import ErrorCollector
    from xcray.data.readers.options import ReadOptions
    from xcray.data.readers.svmlight import read_svmlight

    zero_based = reads_zero_based(zero_based, first_index)
    options = ReadOptions(zero_based=zero_based, n_features=n_features)
    try:
        chunks = [X for X, _ in read_svmlight(file, options, ErrorCollector())]
    except DataError as error:
        with file.open("rb") as lines:
            is_svmlight = b":" in lines.readline(1 << 16) or file.suffix in COMPRESSED_SUFFIXES
        if error.code == "FORMAT_MISMATCH" and str(error.hint).startswith("format="):
            error.hint = "--file reads svmlight; `xcray predict-batch` reads other formats"
        elif error.code != "FORMAT_MISMATCH" and not is_svmlight:
            raise InputError(
                f"{file} is not svmlight: its first line has no INDEX:VALUE",
                code="FORMAT_MISMATCH",
                hint=f"texts, one per line: xcray predict MODEL < {file}; or xcray predict-batch",
            ) from None
        raise
    return stack_rows(chunks, n_features)


def to_instances(rows: CSR) -> list[dict[str, Any]]:
    """Return rows as request instances."""
    pairs = (rows.row(i) for i in range(rows.n_rows))
    return [
        {"indices": indices.tolist(), "values": [float(value) for value in values]}
        for indices, values in pairs
    ]


def print_prediction(answer: dict[str, Any]) -> None:
    """Print the input with its labels below."""
    given = answer["input"]
    fields = {} if isinstance(given, str) else given
    output.print_line(", ".join(f"{field}: {value}" for field, value in fields.items()) or given)
    if not answer["labels"]:
        output.print_line("      no label: none is allowed and above its threshold")
    for place, label in enumerate(answer["labels"], 1):
        score = f"{label['score']:>9.4f}"
        score += f"  {100 * label['probability']:>5.1f} %" if "probability" in label else ""
        name = f"  {label['name']}" if label.get("name", label["label"]) != label["label"] else ""
        origin = format_origin(label["origin"]) if label.get("origin") else ""
        output.print_line(f"  {place:>2}  {score}  {label['label']}{name}{origin}")
    if "certificate" in answer:
        output.print_line(f"      {format_certificate(answer['certificate'])}")


def format_origin(origin: Mapping[str, Any]) -> str:
    """Describe where a ranked label comes from."""
    parts = [f"search {origin['rank']}"] if origin["rank"] else []
    if origin["words"]:
        parts.append(f"name at word {origin['first_word'] + 1}")
    return f"  ({', '.join(parts) or 'not retrieved'})"


def format_certificate(proof: Mapping[str, Any]) -> str:
    """Describe a certificate in one line."""
    gap = proof["bound_gap"]
    known = gap is not None and math.isfinite(gap)
    if proof["exact"]:
        what = (
            f"exact: all other labels score at least {gap:.4f} lower"
            if known
            else "exact: no other label is allowed"
        )
    else:
        what = (
            f"deadline exceeded: another label can score up to {-gap:.4f} higher"
            if known
            else "deadline exceeded: not proven exact"
        )
    return (
        f"{what}; {proof['labels_scored']:,} labels scored, {proof['postings_read']:,} weights read"
    )
