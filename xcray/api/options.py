"""Options of trainings, batch predictions and jobs: dataclasses of `xcray.parameters.parameter`.

`TrainSpec` and `BatchPredictSpec` inherit theirs and check them. The options of commands, the
requests of the REST API and their descriptions, the methods of the client, and the fields of the
console's form are made from these declarations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from xcray.parameters import MAX_SECONDS, parameter

# of the input of a batch prediction
Format: TypeAlias = Literal["parquet", "svmlight", "xc", "jsonl", "csv", "tsv", "fasttext", "text"]
FORMATS: Final[tuple[str, ...]] = get_args(Format)
POOLS: Final = ("serial", "threads", "ray")
CHANGES: Final = (
    "rows", "calibrate", "thresholds", "add", "retrain", "remove", "merge", "rename",
)  # fmt: skip
DEFAULT_MEASURE: Final = "P@1+nDCG@5"


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """Where work runs."""

    pool: str = parameter("threads", "where the work runs", choices=POOLS, set_by_server=True)
    workers: int = parameter(0, "number of workers; 0: all cores", low=0, high=4096)


@dataclass(frozen=True, kw_only=True)
class LocalPoolOptions(PoolOptions):
    """Where work runs that has no pool of Ray."""

    pool: str = parameter("threads", "where the work runs", choices=("serial", "threads"))


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(PoolOptions):
    """Options of a training, except its data, its solver and the solver's parameters."""

    max_seconds: float | None = parameter(
        None,
        "time limit. No new label is started after it; the finished labels (most frequent first) "
        "are published as a partial model. Solvers that train all labels in epochs publish the "
        "whole model of the last epoch",
        kind=float,
        above=0,
        high=MAX_SECONDS,
        unit="seconds",
    )
    memory_limit: int | str | None = parameter(
        None,
        "memory limit. A training that is estimated to need more fails before it starts; some "
        "solvers read rows from files to keep it",
        kind=int,
        low=1,
        high=2**60,
        unit="bytes",
    )
    calibrate: bool = parameter(
        False,
        "also fit probabilities: on one half of the held-out rows, evaluated on the other half",
    )
    keep_duals: bool = parameter(
        False,
        "also store the dual variables of all labels in the model, which makes updates with "
        "`xcray update` faster and allows cheap removal of rows (solvers with a dual bound per "
        "label)",
    )
    rank: bool = parameter(
        False,
        "also fit a ranker, which finds names of labels in texts and orders them with the best "
        "labels of the search; needs texts and label texts, and a second training on 80 % of the "
        "rows",
    )
    groups: str = parameter(
        "none",
        "let similar labels share evidence: none, auto, or numbers of groups such as 100,400. "
        "Groups are trained like labels and weighed on held-out training rows (solvers that train "
        "each label alone)",
        low=1,
        high=200,
    )
    auto: str | None = parameter(
        None,
        "choose row_norm, C, positives, positive_weight and lam, except those that are given, on "
        "held-out training rows (solver ppdsparse), and options of the texts, if the data set was "
        "built from texts, for this measure: P, recall, nDCG, PSP or "
        f"PSnDCG with @k, or a sum of them, such as {DEFAULT_MEASURE}",
        kind=str,
        low=1,
        high=100,
    )


@dataclass(frozen=True, kw_only=True)
class ThresholdOptions:
    """Which of the best labels are good enough for an answer."""

    min_score: float | None = parameter(
        None,
        "leave out labels with a lower score, after the exact search; an answer then has fewer "
        "labels, or none",
        kind=float,
    )
    min_probability: float | None = parameter(
        None,
        "leave out labels with a lower probability; needs a calibrated model or a softmax model",
        kind=float,
        low=0,
        high=1,
    )
    label_thresholds: bool = parameter(
        False,
        "leave out labels whose score is below the threshold of the label; needs a model with "
        "thresholds",
    )


@dataclass(frozen=True, kw_only=True)
class BatchOptions(ThresholdOptions, PoolOptions):
    """Options of a batch prediction, except its model, its input and the input's format."""

    top_k: int = parameter(
        5, "number of labels per row", low=1, high=10_000, flags=("-k", "--top-k")
    )
    allow: tuple[str, ...] | None = parameter(
        None,
        "only these labels can be predicted: names, or set:NAME for the labels of a set",
        kind=str,
        high=10_000,
        many=100_000,
    )
    deny: tuple[str, ...] | None = parameter(
        None,
        "these labels are never predicted: names, or set:NAME for the labels of a set",
        kind=str,
        high=10_000,
        many=100_000,
    )
    probabilities: bool = parameter(
        False, "write the probability of each label; needs a calibrated model or a softmax model"
    )
    certificate: bool = parameter(
        False, "write for each row whether the result is proven exact, and the margin"
    )
    text_fields: tuple[str, ...] | None = parameter(
        None,
        "parquet, jsonl, csv, tsv: fields that form the text, joined by blanks; by default those "
        "of the model's data, else text",
        kind=str,
        low=1,
        high=1000,
        many=100,
    )
    indices_field: str | None = parameter(
        None, "parquet, jsonl: field with the list of feature numbers", kind=str, low=1, high=1000
    )
    values_field: str | None = parameter(
        None,
        "parquet, jsonl: field with the list of values; without indices, one value per feature",
        kind=str,
        low=1,
        high=1000,
    )
    id_field: str | None = parameter(
        None,
        "parquet, jsonl, csv, tsv: field that is copied to the output; by default the row number "
        "from 0",
        kind=str,
        low=1,
        high=1000,
    )
    delimiter: str | None = parameter(
        None,
        "csv, tsv: separator of fields; by default that of the model's data, else a comma or a tab",
        kind=str,
        low=1,
        high=1,
    )
    zero_based: bool = parameter(False, "indices of features start at 0 (svmlight)")
    on_error: str = parameter(
        "fail",
        "what to do with rows that can't be read; skipped rows are counted",
        choices=("fail", "skip"),
    )
    part_rows: int = parameter(
        0, "rows per output file; 0: chosen by the size of the input", low=0, high=1 << 20
    )


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How a file of rows is read: the options that commands show.

    Their checks, defaults and all others are in `xcray.data.readers.options.ReadOptions`.
    """

    text_fields: str | None = parameter(
        None,
        "fields that form the text (jsonl, csv, tsv, parquet), separated by commas; title:2 also "
        "counts the words of the title alone, with weight 2; default: text",
        kind=str,
    )
    category_fields: str | None = parameter(
        None, "fields whose value is one feature, separated by commas", kind=str
    )
    number_fields: str | None = parameter(
        None, "fields with a number as a feature, separated by commas", kind=str
    )
    vector_fields: str | None = parameter(
        None, "field with a list of numbers, like an embedding, as features", kind=str
    )
    label_field: str | None = parameter(
        None, "field with the labels; of objects: subjects.uri; default: labels", kind=str
    )
    label_columns: str | None = parameter(
        None,
        "columns of 0 and 1, one per label, in place of one field: a,b or first:last or prefix*",
        kind=str,
    )
    label_separator: str | None = parameter(
        None, "separator of labels in one field; default: |", kind=str
    )
    id_field: str | None = parameter(
        None,
        "field with the id of a row (jsonl, csv, tsv, parquet with texts); default: its number",
        kind=str,
    )
    delimiter: str | None = parameter(
        None, "separator of fields (csv, tsv); default: a comma, a tab", kind=str
    )
    zero_based: bool = parameter(
        False, "feature indices start at 0 (svmlight)", flags=("--zero-based",)
    )
    n_features: int | None = parameter(
        None, "maximum number of features; more is an error", kind=int, low=1
    )
    n_labels: int | None = parameter(
        None, "maximum number of labels; more is an error", kind=int, low=1
    )


@dataclass(frozen=True, kw_only=True)
class ChangeOptions:
    """What a job changes in a version of a model, to make the next one."""

    change: str = parameter(
        "rows",
        "what changes: the rows of the data set; probabilities (calibrate) or thresholds, fitted "
        "to held-out rows; or labels that are added, retrained, removed, merged or renamed",
        choices=CHANGES,
    )
    labels: tuple[str, ...] | None = parameter(
        None,
        "names of the labels that change; add takes all new labels by default",
        kind=str,
        high=10_000,
        many=100_000,
    )
    into: str | None = parameter(
        None, "name of the merged label, or the new name of a renamed one", kind=str, low=1
    )
    objective: str = parameter(
        "macro-F1",
        "what thresholds maximise: micro-F1, macro-F1, or the recall at a precision",
        choices=("micro-F1", "macro-F1", "precision"),
    )
    precision: float | None = parameter(
        None, "least precision per label, for objective precision", kind=float, above=0, high=1
    )


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Options of a job of the service."""

    name: str | None = parameter(
        None, "display name of the job; by default the model's name", kind=str, low=1, high=128
    )
    priority: int = parameter(
        0,
        "jobs of higher priority run first, jobs of equal priority in order of submission",
        low=-100,
        high=100,
    )
    timeout_seconds: float | None = parameter(
        None,
        "limit of the running time over all attempts; then the job FAILED with reason TIMEOUT",
        kind=float,
        above=0,
        high=MAX_SECONDS,
        unit="seconds",
    )
    expires_seconds: float | None = parameter(
        None,
        "time from now by which the job must have finished; else it FAILED with reason EXPIRED",
        kind=float,
        above=0,
        high=MAX_SECONDS,
        unit="seconds",
    )
    max_attempts: int | None = parameter(
        None,
        "maximum number of attempts; the job FAILED when its runner is lost that often",
        kind=int,
        low=1,
        high=100,
        set_by_server=True,
    )
