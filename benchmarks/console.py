"""Console of a large home in Chromium: seconds to the content of each page, and of each action.

`python -m benchmarks.console [--jobs 10000] [--models 1000] [--labels 670000] [--repeats 5]
[--json FILE]`

The home has stopped jobs, small models, and one model of many labels with 20 weights each, written
with the Python API of job store and registry; `xcray serve --no-runner` serves it. A page is opened
in a new browser context, so nothing is cached; its time ends with the frame that shows the element
that a reader came for. The time of an action begins with the click and ends with the frame that
shows its result. Scrolling is from the top to the end of a list. Times are the median and the
largest of all repeats, in seconds, measured inside the page.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.common import arguments, in_folder
from benchmarks.serving.footprint import made_up
from tests.support.browser import Browsing, browsing, chromium
from tests.support.service_processes import process, read_process_facts
from xcray.jobs.home import Home
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobFilter, JobSubmission
from xcray.service.models.registries import Registries

CONTENT_BAR, ACTION_BAR = 1.0, 0.2  # seconds
BIG: Final = "big"  # the model of many labels
TERMS, WEIGHTS_PER_LABEL = 40_000, 20
JOBS, MODELS, LABELS = (f"[aria-label={name}] tbody td" for name in ("Jobs", "Models", "Labels"))
# Page -> the element that a reader came for.
CONTENT: Final = {
    "": "[aria-label='Running jobs'], h2 + p",
    "jobs": JOBS,
    "jobs/{job}": "h1 + p[role=status]",
    "models": MODELS,
    "models/small-1": "[aria-label=Measures] tbody td",
    "models/big": "[aria-label=Versions] tbody td",
    "datasets": "form[aria-label=Upload]",
    "train": "h1 + p, form[aria-label=Train]",
    "ask": "form[aria-label=Ask]",
    "admin": "form[aria-label='New key']",
}


class Action(NamedTuple):
    """What a person does on a page: click a button, choose an option, or search for a text.

    The element `result` then has another text.
    """

    page: str
    what: str
    value: str
    result: str


ACTIONS: Final = {
    "jobs: next page": Action("jobs", "click", "Older", JOBS),
    "jobs: status": Action("jobs", "choose", "PENDING", "main"),
    "models: next page": Action("models", "click", "Next", MODELS),
    "models: search": Action("models", "search", "small-77", MODELS),
    "labels: next page": Action("models/big", "click", "Next", LABELS),
    "labels: search": Action("models/big", "search", "label66999", LABELS),
}
# Runs before the page: when its content came, since the navigation began.
WATCH: Final = """
new MutationObserver((_, observer) => {
  if (!document.querySelector("%s")) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.shown = performance.now() / 1000; }));
}).observe(document, {childList: true, subtree: true});
"""
SHOWN: Final = """
() => new Promise((done) => {
  const look = () => (window.shown ? done(window.shown) : setTimeout(look, 10));
  look();
})
"""
ACT: Final = """
async ([what, value, result]) => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const text = () => document.querySelector(result)?.textContent;
  const before = text(), begun = performance.now();
  if (what === "click") [...document.querySelectorAll("button")].find((each) => each.textContent === value).click();
  if (what === "choose") {
    const select = document.querySelector("select");
    select.value = value;
    select.dispatchEvent(new Event("change", {bubbles: true}));
  }
  if (what === "search") {
    const input = document.querySelector("input[type=search]");
    input.value = value;
    input.form.requestSubmit();
  }
  while (text() === before && performance.now() - begun < 20000) await frame();
  return (performance.now() - begun) / 1000;
}
"""
SCROLL: Final = """
async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const begun = performance.now();
  window.scrollTo(0, document.documentElement.scrollHeight);
  await frame();
  if (window.scrollY === 0) throw new Error("the page is too short to scroll");
  return (performance.now() - begun) / 1000;
}
"""


def write_home(folder: Path, n_jobs: int, n_models: int, n_labels: int) -> str:
    """Write a home of this size and return the id of its newest job."""
    home = Home(folder)
    store = JobStore(home.store_url)
    for i in range(n_jobs):
        spec = {"solver": "ppdsparse", "params": {}, "dataset_id": "ds_0", "ks": [1, 3, 5]}
        job = store.jobs.submit(JobSubmission(spec, f"job-{i}", model=f"small-{i % n_models}"))[0]
    while store.jobs.request_stop_all(JobFilter("default")):
        pass  # a transaction stops at most 500 jobs
    store.close()
    registry = Registries(home).of("default")
    small = made_up(folder / "small", n_labels=5, n_terms=200, per_label=20)
    for i in range(n_models - 1):
        shutil.copytree(small, folder / "staged")
        registry.publish(f"small-{i}", folder / "staged")
    registry.publish(BIG, made_up(folder / "made", n_labels, TERMS, WEIGHTS_PER_LABEL))
    return job.id


def page_seconds(browser: Browsing, page: str, content: str) -> float:
    """Return the seconds from the navigation to the content of a page."""
    opened = browser.open("/healthz")  # not the console
    opened.add_init_script(WATCH % content)
    opened.goto(f"{browser.url}/#/{page}")
    seconds = opened.evaluate(SHOWN)
    opened.context.close()
    return float(seconds)


def action_seconds(browser: Browsing, action: Action) -> float:
    """Return the seconds of an action, on a page that is loaded."""
    opened = _loaded(browser, action.page, action.result)
    seconds = opened.evaluate(ACT, [action.what, action.value, action.result])
    opened.context.close()
    return float(seconds)


def scroll_seconds(browser: Browsing, page: str, content: str) -> float:
    """Return the seconds until the end of a loaded list is drawn."""
    opened = _loaded(browser, page, content)
    seconds = opened.evaluate(SCROLL)
    opened.context.close()
    return float(seconds)


def _loaded(browser: Browsing, page: str, content: str) -> Any:
    """Return a page after all its requests."""
    opened = browser.open(f"/#/{page}")
    opened.locator(content).first.wait_for()
    opened.wait_for_timeout(500)
    return opened


def measured(name: str, run: Callable[[], float], repeats: int, bar: float) -> dict[str, Any]:
    """Run a measurement several times and print it."""
    times = [run() for _ in range(repeats)]
    out = {"median": statistics.median(times), "largest": max(times), "bar": bar}
    ok = "" if out["median"] < bar else "  SLOW"
    print(f"{name:32s} {out['median']:7.3f} s, at most {out['largest']:7.3f}{ok}", flush=True)
    return out


def run(n_jobs: int, n_models: int, n_labels: int, repeats: int, folder: Path) -> dict[str, Any]:
    """Write the home, serve it, and measure pages, actions and lists."""
    program = chromium()
    if program is None:
        raise SystemExit("there is no Chromium on this machine")
    begun = time.perf_counter()
    job = write_home(folder / "home", n_jobs, n_models, n_labels)
    print(f"home written in {time.perf_counter() - begun:.1f} s", flush=True)
    return {
        "jobs": n_jobs,
        "models": n_models,
        "labels": n_labels,
        "seconds": measure(folder / "home", job, program, repeats),
    }


def measure(home: Path, job: str, program: str, repeats: int) -> dict[str, Any]:
    """Serve a home and return the times by page, action and list."""
    with process(home, "serve", "--no-runner") as child:
        url = read_process_facts(home, child, "serve")["url"]
        with browsing(url, program) as browser:
            _loaded(browser, f"models/{BIG}", LABELS).context.close()  # it is in memory from now on
            out = {
                f"page {page}": measured(
                    f"page /{page}",
                    partial(page_seconds, browser, page.format(job=job), content),
                    repeats,
                    CONTENT_BAR,
                )
                for page, content in CONTENT.items()
            }
            for name, action in ACTIONS.items():
                out[name] = measured(
                    name, partial(action_seconds, browser, action), repeats, ACTION_BAR
                )
            for page, content in (("jobs", JOBS), ("models", MODELS), (f"models/{BIG}", LABELS)):
                out[f"scroll {page}"] = measured(
                    f"scroll {page}",
                    partial(scroll_seconds, browser, page, content),
                    repeats,
                    ACTION_BAR,
                )
    return out


def main() -> None:
    """Parse the arguments and run."""
    sizes = {"jobs": 10_000, "models": 1_000, "labels": 670_000, "repeats": 5}
    chosen = arguments(
        __doc__ or "",
        **{name: {"type": int, "default": default} for name, default in sizes.items()},
    )
    in_folder(partial(run, chosen.jobs, chosen.models, chosen.labels, chosen.repeats), chosen.json)


if __name__ == "__main__":
    main()
