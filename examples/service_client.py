"""Start the service, upload texts, train a model, ask it over REST and stop the service."""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from xcray import Client

SERVE = [sys.executable, "-m", "xcray", "serve", "--port", "0", "--json"]  # 0: any free port
TOPICS = {"fruit": "apple pear plum", "tool": "hammer saw drill", "bird": "owl robin crow"}


def main() -> None:
    """Run the service as a child process whose home is a temporary directory."""
    with TemporaryDirectory(prefix="xcray-example-") as home:
        env = {**os.environ, "XCRAY_HOME": home, "XCRAY_LOG_LEVEL": "error"}
        with subprocess.Popen(SERVE, stdout=subprocess.PIPE, text=True, env=env) as service:
            try:
                line = next(line for line in service.stdout if '"url"' in line)
                train_and_predict(line.split('"')[3], Path(home, "texts.jsonl"))
            finally:
                service.terminate()


def train_and_predict(url: str, file: Path) -> None:
    """Upload a file of texts, train on it, wait for the job and print one answer."""
    rows = [{"text": text, "labels": [label]} for label, text in TOPICS.items()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Client(url) as client:
        data = client.datasets.upload(file, name="topics", format="jsonl")
        job = client.jobs.submit(dataset=client.datasets.wait(data["id"])["id"], model="topics")
        print("job:", client.jobs.wait(job["id"])["status"])
        print("answer:", client.predict("topics", ["a ripe plum"], top_k=1)["predictions"])


if __name__ == "__main__":
    main()
