"""A data set of texts whose labels have names, and a model of it with a ranker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.label_texts import LabelText, LabelTexts, set_label_texts
from xcray.model.model import Model
from xcray.training import TrainSpec, train

# of labels from frequent to less frequent, and of one without any row
NAMES = ("White shark", "Shark", "Polar bear", "Bear", "Tree frog", "Owl", "Red fox", "Lynx")
UNSEEN = ("quokka", "Quokka")
WORDS = [
    "we",
    "saw",
    "one",
    "near",
    "the",
    "river",
    "and",
    "some",
    "more",
    "in",
    "a",
    "forest",
    "at",
    "night",
    "while",
    "walking",
]
ASKED = "At night we saw a quokka near the white shark"


def name_of(label: int) -> str:
    """Return the name of a label. Those after NAMES have one row each."""
    return NAMES[label] if label < len(NAMES) else f"Rarity{label}"


def named_data(folder: Path, rows: int = 1000, reading: dict[str, Any] | None = None) -> Dataset:
    """Build a data set of texts: three in four name their label, the others have other words.

    Every eighth row has a label of its own. The first two words are the title, all of them the
    abstract, and every third row is in German: fields of build options in `reading`.
    """
    rng = np.random.default_rng(0)
    lines = []
    for i in range(rows):
        label = i if i % 8 == 7 else int(min(len(NAMES) - 1, rng.geometric(0.35) - 1))
        words = rng.choice(WORDS, 6).tolist()
        named = name_of(label) if label == i or rng.random() < 0.75 else f"hint{label}"
        words.insert(int(rng.integers(6)), named)
        text, title = " ".join(words), " ".join(words[:2])
        fields = {"title": title, "abstract": text, "lang": "en" if i % 3 else "de"}
        row = {"id": str(i), "text": text, **fields, "labels": [f"id{label}"]}
        lines.append(json.dumps(row))
    source = folder / "rows.jsonl"
    source.write_text("\n".join(lines))
    options = BuildOptions.from_dict({"test_fraction": 0.2, **(reading or {})})
    data = build("jsonl", {"train": source}, folder / "data", options)
    numbers = [int(name.removeprefix("id")) for name in data.label_names]
    entries = [LabelText(f"id{i}", name_of(i)) for i in numbers]
    return set_label_texts(data, LabelTexts.of([*entries, LabelText(*UNSEEN)]))


def ranked_model(data: Dataset, folder: Path, **options: object) -> Model:
    """Train a model with a ranker."""
    spec = TrainSpec(str(data.path), **{"pool": "serial", "rank": True, **options})  # type: ignore[arg-type]
    return Model.open(train(spec, run_dir=folder / "run", out=folder / "model").model_path)
