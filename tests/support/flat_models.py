"""Model directories from plain keyword arguments, for tests that vary one of them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from xcray.model.directory import Staging
from xcray.model.model import Model
from xcray.model.write import ModelContent, TrainingRecord, write_model

CONTENT = tuple(field.name for field in fields(ModelContent))


def write_fields(path: Path, *, staged: Staging | None = None, **values: Any) -> Model:
    """Write a model of the fields of a ModelContent and a TrainingRecord, and open it."""
    content = ModelContent(**{name: values.pop(name) for name in CONTENT if name in values})
    return write_model(path, content, TrainingRecord(**values), staged=staged)
