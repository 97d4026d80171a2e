"""The steps of a user in a pod: build a data set, train a model, predict. Prints one JSON line.

The environment gives URL, KEY_FILE and LABELS.
"""

from __future__ import annotations

import json
import os
import time

from xcray import Client


def main() -> None:
    """Run all steps. Raises an error if one fails."""
    with open(os.environ["KEY_FILE"]) as file:
        key = file.read().strip()
    began = time.monotonic()
    with Client(os.environ["URL"], key=key, timeout=120) as client:
        shape = {"rows": 2000, "features": 500, "labels": int(os.environ["LABELS"]), "seed": 3}
        new_dataset = client.datasets.build(
            "journey", "synthetic", {"test_fraction": 0.1, "synthetic": shape}
        )
        dataset = client.datasets.wait(new_dataset["id"])
        built = time.monotonic()
        job = client.jobs.wait(client.jobs.submit(dataset=dataset["id"], model="journey")["id"])
        trained = time.monotonic()
        assert job["status"] == "SUCCEEDED", (job, client.jobs.logs(job["id"]))
        answers = client.predict("journey", [{"indices": [1, 5], "values": [1.0, 1.0]}], top_k=3)
        assert len(answers["predictions"][0]["labels"]) == 3, answers
        figures = {
            "build_s": built - began,
            "train_s": trained - built,
            "predict_s": time.monotonic() - trained,
        }
        print(
            json.dumps(
                {
                    "workers": job["spec"].get("workers"),
                    "sha256": client.models.get("journey")["latest"]["sha256"],
                    **figures,
                }
            )
        )


main()
