"""Pictures of every page of the console, wide and narrow, light and dark, for docs/console.md.

    python -m tests.support.console_pictures [--out docs/pictures/console]

A service in a temporary folder trains two versions of a model of the documentation of Python
(`pydocs`), with probabilities, and a third training is running. Pictures have few colours, so that
each is smaller than 60 kB and all are smaller than 1.4 MB; needs Chromium and Pillow.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.browser import browsing, chromium
from tests.support.service_processes import no_jobs_left, process, read_process_file, until

SIZES: Final = ((1280, 800), (390, 844))  # of the window: wide, and a phone
COLOURS, MAX_BYTES, MAX_TOTAL = 48, 60_000, 1_400_000
QUESTION: Final = "read rows of a csv file into dictionaries and write them as json"
ENDLESS: Final = {"epochs": 1_000_000, "tolerance": 0.0, "history": 0, "steps": "sqrt"}


def main() -> None:
    """Parse the arguments and write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures/console"))
    out = parser.parse_args().out
    program = chromium()
    if program is None:
        raise SystemExit("there is no Chromium on this machine")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="xcray-pictures-") as folder:
        home = Path(folder) / "home"
        with process(home, "serve") as child, no_jobs_left(home):
            url = read_process_file(home, child, "serve")["url"]
            with httpx.Client(base_url=url, trust_env=False, timeout=600) as http:
                key, places = prepare(http, home)
            draw(url, program, key, places, out)


def prepare(http: httpx.Client, home: Path) -> tuple[str, dict[str, tuple[str, str]]]:
    """Fill a service; return a key, and by picture the page and the text that it is scrolled to."""
    key = http.post("/v1/keys", json={"name": "admin", "scopes": ["admin"]}).json()["key"]
    http.headers["authorization"] = f"Bearer {key}"
    limited = {"name": "notebook", "scopes": ["predict"], "limits": {"requests_per_minute": 600}}
    http.post("/v1/keys", json=limited)
    data = _create(http, home, "/v1/datasets", {"name": "pydocs", "format": "pydocs"})
    training = {"dataset": "pydocs", "model": "pydocs", "calibrate": True, "workers": 2}
    for lam in (0.01, 0.003):
        job = _create(http, home, "/v1/jobs", {**training, "params": {"lam": lam}})
    http.put("/v1/models/pydocs/aliases/prod", json={"version": 2})
    judged = {"id": "doc-17", "instance": {"text": QUESTION}, "right": ["csv"], "wrong": ["json"]}
    http.post("/v1/models/pydocs@prod/feedback", json=judged).raise_for_status()
    endless = {"dataset": "pydocs", "model": "softmax", "solver": "dsmlr", "params": ENDLESS}
    running = http.post("/v1/jobs", json=endless).headers["location"]
    _wait_for(http, home, running, lambda job: job["progress"].get("done"))
    question = str(httpx.QueryParams({"model": "pydocs@prod", "text": QUESTION, "p": "1"}))
    return key, {
        "overview": ("", "Overview"),
        "datasets": ("datasets", "Data sets"),
        "dataset": (f"datasets/{data}", "Data set pydocs"),
        "runs": (f"datasets/{data}?tab=runs", "Data set pydocs"),
        "train": ("train", "Train"),
        "jobs": ("jobs", "Jobs"),
        "job": (f"jobs/{job}", "Job pydocs"),
        "models": ("models", "Models"),
        "model": ("models/pydocs", "Model pydocs version 2, the latest"),
        "certificate": ("models/pydocs?tab=cost", "Certificates"),
        "versions": ("models/pydocs?tab=versions", "Aliases"),
        "change": ("models/pydocs?tab=change", "Change"),
        "feedback": ("models/pydocs?tab=feedback", "Feedback"),
        "compare": ("compare?models=pydocs:1,pydocs:2", "By label frequency"),
        "ask": (f"ask?{question}", "Ask"),
        "admin": ("admin", "Admin"),
    }


def draw(url: str, program: str, key: str, places: dict[str, tuple[str, str]], out: Path) -> None:
    """Write NAME-WIDTH-light.png and NAME-WIDTH-dark.png of every page, and of the sign-in."""
    total = 0
    with browsing(url, program) as browser:
        for (width, height), scheme in product(SIZES, ("light", "dark")):
            page = browser.open("/", width, color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": height})
            page.get_by_role("heading", name="Sign in").wait_for()
            total += write_picture(page, out / f"sign-in-{width}-{scheme}.png")
            page.get_by_label("Key (xck_...)").fill(key)
            page.get_by_role("button", name="Sign in").click()
            for name, (place, heading) in places.items():
                page.goto(f"{url}/#/{place}")
                title = page.get_by_role("heading", name=heading, exact=True)
                title.wait_for()
                page.wait_for_load_state("networkidle")
                page.wait_for_timeout(500)  # plots are drawn after the last reply
                if name in ("certificate", "versions", "change", "feedback"):
                    title.evaluate("node => node.scrollIntoView()")
                else:
                    page.evaluate("scrollTo(0, 0)")
                total += write_picture(page, out / f"{name}-{width}-{scheme}.png")
    print(f"{total:,} bytes")
    if total >= MAX_TOTAL:
        raise SystemExit(f"the pictures have {total:,} bytes, the limit is {MAX_TOTAL:,}")


def write_picture(page: Any, path: Path) -> int:
    """Write what the window shows, with a palette, and return the number of bytes."""
    # Pillow is imported here: only this program needs it.
    from PIL import Image

    image = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    if size >= MAX_BYTES:
        raise SystemExit(f"{path.name} has {size:,} bytes, the limit is {MAX_BYTES:,}")
    return size


def _create(http: httpx.Client, home: Path, path: str, body: dict[str, Any]) -> str:
    """Create a data set or job, wait until it is complete, and return its id."""
    location = http.post(path, json=body).raise_for_status().headers["location"]
    _wait_for(http, home, location, lambda made: made["status"] in ("READY", "SUCCEEDED"))
    return str(location.rsplit("/", 1)[-1])


def _wait_for(
    http: httpx.Client, home: Path, location: str, wish: Callable[[dict[str, Any]], Any]
) -> None:
    """Wait until `wish` is true of a data set or job, which must not fail."""

    def is_fulfilled() -> bool:
        state = http.get(location).raise_for_status().json()
        assert state["status"] != "FAILED", state
        return bool(wish(state))

    until(is_fulfilled, home)


if __name__ == "__main__":
    main()
