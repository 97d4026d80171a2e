"""Build a data set, train PPDSparse on threads and ask for the best labels of held-out rows."""

from pathlib import Path
from tempfile import TemporaryDirectory

from xcray import Predictor, TrainSpec, train
from xcray.data.build import BuildOptions, build

OPTIONS = {
    "test_fraction": 0.25,
    "synthetic": {"rows": 400, "features": 200, "labels": 40, "seed": 7},
}


def main() -> None:
    """Train on synthetic rows; print P@1 and the three best labels of one held-out row."""
    with TemporaryDirectory(prefix="xcray-example-") as folder:
        dataset = build("synthetic", {}, f"{folder}/data", BuildOptions.from_dict(OPTIONS))
        spec = TrainSpec(dataset=f"{folder}/data", params={"lam": 0.05}, pool="threads")
        # An interrupted training continues when it is called again with the same run directory.
        result = train(spec, run_dir=Path(folder, "run"), out=Path(folder, "model"))
        print(f"P@1 on held-out rows: {result.measures['P@1']:.2f}")

        predictor = Predictor(result.model_path)
        top = predictor.predict(dataset["test"].X, k=3)
        for label in predictor.scored_labels(top)[0]:
            print(f"label {label.label}: score {label.score:+.3f}")


if __name__ == "__main__":
    main()
