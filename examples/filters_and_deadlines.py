"""Restrict answers to some labels, read the certificate of each answer and set a deadline."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from xcray import Model, Predictor, TrainSpec, train
from xcray.data.build import BuildOptions, build

OPTIONS = {
    "test_fraction": 0.25,
    "synthetic": {"rows": 400, "features": 200, "labels": 40, "seed": 7},
}


def main() -> None:
    """Answer the same rows without a limit, with label filters and with a deadline."""
    with TemporaryDirectory(prefix="xcray-example-") as folder:
        dataset = build("synthetic", {}, f"{folder}/data", BuildOptions.from_dict(OPTIONS))
        spec = TrainSpec(dataset=f"{folder}/data", pool="serial")
        train(spec, run_dir=Path(folder, "run"), out=Path(folder, "model"))
        predictor, rows = Predictor(Model.open(Path(folder, "model"))), dataset["test"].X

        answer = predictor.search(rows, k=3)
        print(f"exact rows: {answer.exact.sum()} of {len(answer.exact)}")
        print(f"labels scored for the first row: {answer.labels_scored[0]}")

        only = predictor.filter(allow=[3, 5, 8, 13], deny=[13])  # numbers or names
        filtered = predictor.search(rows, k=3, allow=only)
        print("returned labels:", np.unique(filtered.labels).tolist())

        # An unfinished row has exact False; bound_gap limits what better labels it can have missed.
        timed = predictor.search(rows, k=3, deadline_ms=2)
        print(f"exact within 2 ms: {timed.exact.sum()} rows, least gap {timed.bound_gap.min():.3f}")


if __name__ == "__main__":
    main()
