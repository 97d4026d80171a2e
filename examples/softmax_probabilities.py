"""Train DS-MLR, multinomial logistic regression over all labels, and print probabilities."""

from pathlib import Path
from tempfile import TemporaryDirectory

from xcray import Predictor, TrainSpec, train
from xcray.data.build import BuildOptions, build

OPTIONS = {
    "test_fraction": 0.25,
    "synthetic": {"rows": 400, "features": 200, "labels": 20, "labels_per_row": 1, "seed": 7},
}


def main() -> None:
    """Print the most probable labels of the first held-out row and their share of all labels."""
    with TemporaryDirectory(prefix="xcray-example-") as folder:
        dataset = build("synthetic", {}, f"{folder}/data", BuildOptions.from_dict(OPTIONS))
        spec = TrainSpec(
            dataset=f"{folder}/data",
            solver="dsmlr",
            params={"lam": 1e-3},
            pool="threads",
            workers=2,
        )
        result = train(spec, run_dir=Path(folder, "run"), out=Path(folder, "model"))

        predictor = Predictor(result.model_path)
        answer = predictor.search(dataset["test"].X, k=20, probabilities=True)
        probabilities = predictor.probabilities(answer)
        for label in predictor.scored_labels(answer, probabilities)[0][:3]:
            print(f"label {label.label}: probability {label.probability:.3f}")
        print(f"all 20 labels of the row: {probabilities[0].sum():.3f}")


if __name__ == "__main__":
    main()
