"""Train on texts with tf-idf features and explain which words caused an answer."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from xcray import Predictor, TrainSpec, train
from xcray.data.build import BuildOptions, build

TOPICS = {
    "fruit": ["apple pear plum", "ripe cherry and pear", "plum and apple cake"],
    "tool": ["hammer and saw", "drill a hole with a drill", "file and hammer"],
    "bird": ["owl in the night", "robin and crow sing", "crow and owl fly"],
}


def main() -> None:
    """Print the best labels of two texts and the explanation of the first answer."""
    with TemporaryDirectory(prefix="xcray-example-") as folder:
        source = Path(folder, "texts.jsonl")
        rows = [{"text": text, "labels": [label]} for label in TOPICS for text in TOPICS[label]]
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = BuildOptions.from_dict({"text": {"ngram_max": 2, "sublinear_tf": True}})
        build("jsonl", {"train": source}, f"{folder}/data", options)
        spec = TrainSpec(dataset=f"{folder}/data", pool="serial", params={"lam": 0.01})
        model = train(spec, run_dir=Path(folder, "run"), out=Path(folder, "model")).model_path

        predictor = Predictor(model)
        texts = ["a ripe apple and a plum", "the owl and the robin"]
        top = predictor.predict(texts, k=1)
        for text, (best,) in zip(texts, predictor.scored_labels(top), strict=True):
            print(f"{text}: {best.label}")
        why = predictor.explain(texts[0], "fruit", top=3)
        for part in why.contributions:
            print(f"{part.contribution:+.3f}  {part.feature}")
        print(f"{why.score:+.3f}  score of {why.name}, rank {why.rank}")


if __name__ == "__main__":
    main()
