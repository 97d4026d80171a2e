"""Execute the notebooks, which are committed with outputs: `python -m docs.notebooks [NAME ...]`.

Each runs in a folder of its own. Its path is replaced in the outputs, and of the metadata only the
language remains.
"""

from __future__ import annotations

import base64
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
from nbclient import NotebookClient
from PIL import Image
from traitlets.config import Config

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
OWN_FOLDERS = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "TMPDIR")
# The default backend draws into the notebook; without MNIST a notebook takes data that it has.
LEFT_OUT = ("MPLBACKEND", "MNIST")


def execute(file: str, place: Path) -> Any:
    """Return a notebook after a run in a folder, with the user's settings left out.

    The first cell that raises ends it with its traceback. The kernel listens on sockets in a folder
    of its own (with a short path, as the system wants it): another process can take a free port
    before the kernel does.
    """
    for name in OWN_FOLDERS:
        (place / name.lower()).mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    environment |= {name: str(place / name.lower()) for name in OWN_FOLDERS}
    notebook = nbformat.read(NOTEBOOKS / file, as_version=4)
    with (
        tempfile.TemporaryDirectory() as sockets,
        mock.patch.dict(os.environ, environment, clear=True),
    ):
        sockets_of = {"transport": "ipc", "connection_file": f"{sockets}/kernel.json"}
        NotebookClient(
            notebook,
            timeout=1800,
            startup_timeout=600,
            iopub_timeout=600,  # after 4 s, its default, outputs would be lost
            kernel_name="python3",
            resources={"metadata": {"path": str(place)}},
            config=Config({"KernelManager": sockets_of}),
        ).execute()
    return notebook


def tidy(notebook: Any, place: Path) -> Any:
    """Return an executed notebook without times of cells, machine paths and names of the system."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = _without_paths(output.text, place)
            for kind, content in output.get("data", {}).items():
                if kind == "image/png":
                    output.data[kind] = _with_few_colours(content)
                elif isinstance(content, str) and kind.startswith("text/"):
                    output.data[kind] = _without_paths(content, place)
    return notebook


def _without_paths(text: str, place: Path) -> str:
    """Replace the folder of the run and temporary folders in it by `...`."""
    return re.sub(rf"{re.escape(str(place))}(/tmpdir/[\w.-]+)?", "...", text)


def _with_few_colours(picture: str) -> str:
    """Return a PNG in base64 with a palette of 64 colours, a third of the size."""
    small = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        image.convert("RGB").quantize(64).save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def main() -> None:
    """Execute the notebooks with these names, or all, and write them."""
    names = sys.argv[1:] or sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    for name in names:
        with tempfile.TemporaryDirectory(prefix="notebook-") as folder:
            notebook = tidy(execute(f"{name}.ipynb", Path(folder)), Path(folder))
        nbformat.write(notebook, NOTEBOOKS / f"{name}.ipynb")
        print(name, (NOTEBOOKS / f"{name}.ipynb").stat().st_size, "bytes", flush=True)


if __name__ == "__main__":
    main()
