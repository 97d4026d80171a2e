"""Model directories with one changed file, with or without a matching manifest (T6)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.live_service import text_model
from xcray.errors import XcrayError
from xcray.model.manifest import MANIFEST, seal_manifest
from xcray.model.model import Model
from xcray.predict.predictor import Predictor
from xcray.storage.atomic import file_digests

WORDS = (
    *b'"shape" "nnz" "files" "bytes" "../x" null [] {} true -1 1e9 2147483648 [['.split(),
    *b"indices values ARROW1 \xff\xff\xff\xff \xff\xff\xff\x7f \0\0\0\0 n_cols \x08\0\0\0".split(),
)


@cache
def template() -> dict[str, bytes]:
    """Return the files of a valid model; nothing stays on disk."""
    with TemporaryDirectory() as home:
        root = Path(home) / "model"
        text_model(root)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        return {str(path.relative_to(root)): path.read_bytes() for path in files}


def seeds() -> list[bytes]:
    """Return one seed per file and per manifest choice.

    The first byte selects the file, the second whether to update the manifest, the rest is the
    content.
    """
    return [
        bytes([i, sealing]) + content
        for i, content in enumerate(template().values())
        for sealing in (0, 1)
    ]


def run(data: bytes, folder: Path) -> str:
    """Check that a changed file is refused unless the manifest was updated to match it.

    A model that opens with full verification must be usable.
    """
    files = template()
    if len(data) < 2:
        return "nothing"
    name, seal = list(files)[data[0] % len(files)], bool(data[1] & 1)
    path = folder / "model"
    shutil.rmtree(path, ignore_errors=True)
    for each, content in {**files, name: data[2:]}.items():
        (path / each).parent.mkdir(parents=True, exist_ok=True)
        (path / each).write_bytes(content)
    same = files[name] == data[2:]
    if seal:
        _fit(path, name)
    outcome = []
    for verify in (False, True):
        try:
            model = Model.open(path, verify=verify)
        except XcrayError as error:
            json.dumps(error.as_dict(), allow_nan=False).encode()
            outcome.append(str(error.code))
            continue
        outcome.append("accepted")
        if verify:
            assert same or seal, f"{name} was changed, and the change was not detected"
            Predictor(model).scored_labels(Predictor(model).predict(["rows of a csv file"], 2))
    return " ".join(outcome)


def _fit(path: Path, name: str) -> None:
    """Update the manifest to the files' sizes and checksums and seal it, if it is a manifest."""
    try:
        manifest: Any = json.loads((path / MANIFEST).read_bytes())
        manifest.pop("seal", None)
        if name != MANIFEST:
            manifest["files"] = {
                file: entry for file, entry in file_digests(path).items() if file != MANIFEST
            }
        (path / MANIFEST).write_bytes(seal_manifest(manifest).encode())
    except (ValueError, TypeError, AttributeError, RecursionError, XcrayError):
        return  # the unchanged manifest refuses the file


def target(make: Callable[..., Any]) -> Any:
    """Return the target of model directories."""
    return make("model-directory", seeds(), WORDS, run)
