"""Try the distributions of `build/dist` as a user would: new environments, no checkout.

    python -m tests.deployment.release [PYTHON ...] [--sizes]

PYTHON    interpreters; default: those of 3.11, 3.12 and 3.13 that are on the PATH
--sizes   also print the MB of Ray alone, and of the wheel without extras and with each of them

In an environment per Python it installs the wheel, then runs the six lines of the README and
`xcray demo --small`. From the last environment it writes `build/sbom.cdx.json` (CycloneDX) and
`build/licences.txt`. `make release` runs it after `make dist`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[2]
PYTHONS: Final = ("python3.11", "python3.12", "python3.13")
EXTRAS: Final = "all"
SMALL_DATA: Final = """
import numpy as np, scipy.sparse as sp
X = sp.random(300, 40, 0.2, format="csr", dtype=np.float32, random_state=0)
Y = sp.csr_matrix((X[:, :5].toarray() > 0).astype(np.float32))
X_new, X_test, Y_test = X[:2], X, Y
"""


def run(*command: str | Path, **options: Any) -> str:
    """Run a program outside the checkout and return its output; end with its errors if it fails."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("XCRAY_", "PYTHON"))
    }
    ran = subprocess.run(command, capture_output=True, text=True, env=clean, **options)
    if ran.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}")
    return ran.stdout


def works(python: str) -> bool:
    """Whether an interpreter is there and starts; a version manager's stand-in may not."""
    return (
        bool(shutil.which(python))
        and not subprocess.run([python, "-V"], capture_output=True, check=False).returncode
    )


def environment(python: str | Path, folder: Path, requirement: str) -> Path:
    """Return the Python of a new virtual environment in which `requirement` is installed."""
    run(python, "-m", "venv", folder, cwd=folder.parent)
    new = folder / "bin" / "python"
    run(new, "-m", "pip", "install", "--quiet", "--no-compile", requirement, cwd=folder)
    return new


def packages_of(python: Path) -> dict[str, Distribution]:
    """Return the packages of an environment by name, without those it was created with."""
    (folder,) = python.parents[1].glob("lib/python*/site-packages")
    found = {canonicalize_name(each.name): each for each in distributions(path=[str(folder)])}
    return {name: each for name, each in found.items() if name not in ("pip", "setuptools")}


def megabytes(packages: Iterable[Distribution]) -> float:
    """Return the size of packages, without bytecode."""
    files = (Path(str(file.locate())) for each in packages for file in each.files or ())
    return (
        sum(path.stat().st_size for path in files if path.is_file() and path.suffix != ".pyc") / 1e6
    )


def try_wheel(python: str, wheel: Path, folder: Path) -> Path:
    """Install the wheel for one Python, run the six lines and the demo; return its Python."""
    started = time.monotonic()
    new = environment(python, folder, f"{wheel}[{EXTRAS}]")
    ready = time.monotonic()
    run(new, "-m", "pip", "check", cwd=folder)
    readme = (ROOT / "README.md").read_text()
    (lines,) = re.findall(r"```python\n(from xcray import PPDSparse\n.*?)```", readme, re.DOTALL)
    where = "import xcray; print(xcray.__version__, xcray.__file__)"
    (folder / "readme_lines.py").write_text(f"{SMALL_DATA}\n{lines}\n{where}\n")
    version, file = run(new, "readme_lines.py", cwd=folder).split()
    assert folder in Path(file).parents, file
    assert version in wheel.name.split("-"), version
    tried = time.monotonic()
    demo = json.loads(run(folder / "bin" / "xcray", "demo", "--small", "--json", cwd=folder))
    best = demo["answers"][0]["labels"][0]["label"]
    assert best.startswith("csv"), demo["answers"][0]
    print(
        f"{new.resolve().name}: installed in {ready - started:.0f} s, "
        f"{megabytes(packages_of(new).values()):.0f} MB with {EXTRAS}; six lines {tried - ready:.0f} s, "
        f"demo {demo['seconds']:.0f} s, with compiling",
        flush=True,
    )
    return new


def list_dependencies(python: Path, folder: Path) -> None:
    """Write the SBOM of an environment, and its packages with their licences."""
    tools = environment(python, folder / "tools", "cyclonedx-bom")
    sbom = ROOT / "build" / "sbom.cdx.json"
    program = tools.with_name("cyclonedx-py")
    run(program, "environment", "--output-reproducible", "--of", "JSON", "-o", sbom, python)
    lines = []
    for part in json.loads(sbom.read_text())["components"]:
        names = [
            each.get("expression") or each["license"].get("id") or each["license"]["name"]
            for each in part.get("licenses", [])
        ]
        lines.append(f"{part['name']} {part['version']}  {'; '.join(names) or 'not declared'}")
    (ROOT / "build" / "licences.txt").write_text("\n".join(sorted(lines)) + "\n")
    missing = [line for line in lines if line.endswith("not declared")]
    print(
        f"{len(lines)} packages in build/sbom.cdx.json; licence not declared: {missing or 'none'}"
    )


def requirements_of(
    found: Mapping[str, Distribution], requirement: Requirement, visited: set[str]
) -> set[str]:
    """Return the names of the installed packages that a requirement needs."""
    name = canonicalize_name(requirement.name)
    for extra in ("", *requirement.extras):
        if f"{name}[{extra}]" not in visited:
            visited.add(f"{name}[{extra}]")
            for part in map(Requirement, found[name].requires or ()):
                if part.marker is None or part.marker.evaluate({"extra": extra}):
                    requirements_of(found, part, visited)
    return {each.partition("[")[0] for each in visited}


def print_sizes(python: Path, wheel: Path) -> None:
    """Print the size of Ray alone, and of the wheel without extras and with each one for users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    users = [extra for extra in extras if extra not in ("docs", "dev")]
    everything = f"{wheel}[{','.join(users)}]"
    run(python, "-m", "pip", "install", "-q", "--no-compile", everything, cwd=python.parent)
    found = packages_of(python)
    size = {name: megabytes([package]) for name, package in found.items()}
    base = requirements_of(found, Requirement("xcray"), set())
    for name in (extras["ray"][0], "xcray", *(f"xcray[{extra}]" for extra in users)):
        names = requirements_of(found, Requirement(name), set())
        added = names - base or names
        largest = sorted(added, key=lambda each: -size[each])[:4]
        print(
            f"{name}: {sum(size[each] for each in names):.0f} MB; {sum(size[each] for each in added):.0f} added to xcray: "
            + ", ".join(f"{each} {size[each]:.0f}" for each in largest),
            flush=True,
        )


def main() -> None:
    """Try the wheel with each Python."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="*", help="interpreters")
    parser.add_argument("--sizes", action="store_true", help="also measure each extra")
    arguments = parser.parse_args()
    (wheel,) = (ROOT / "build" / "dist").glob("*.whl")
    pythons = arguments.pythons or [each for each in PYTHONS if works(each)]
    print(
        f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB; with {', '.join(pythons)}", flush=True
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for number, python in enumerate(pythons):
            new = try_wheel(python, wheel, folder / str(number))
        list_dependencies(new, folder)
        if arguments.sizes:
            print_sizes(folder / "0" / "bin" / "python", wheel)


if __name__ == "__main__":
    main()
