"""Opening of models: processes of a service share the checksums that one of them has verified."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from tests.support.live_service import plain_model
from xcray.errors import Corrupt
from xcray.index.search import SearchIndex
from xcray.model.registry import Registry
from xcray.predict import Predictor
from xcray.service.models import loading
from xcray.service.models.loading import LoadedModel, ModelKey, ModelLoader, open_predictor_soon
from xcray.service.observability.metrics import Metrics
from xcray.storage import verified as verified_files

FEATURES = 6


def test_a_file_that_one_process_has_verified_is_not_hashed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_model(tmp_path / "model", FEATURES)
    monkeypatch.setattr(verified_files, "SETTLED_NS", 0)
    hashed: list[int] = []
    verify_files = verified_files.verify_files

    def count(directory: Path, digests: dict[str, dict[str, object]]) -> None:
        hashed.append(len(digests))
        verify_files(directory, digests)

    monkeypatch.setattr(verified_files, "verify_files", count)
    memory = tmp_path / "verified.json"
    first = open_predictor_soon(tmp_path / "model", memory)
    second = open_predictor_soon(tmp_path / "model", memory)
    assert first.model.sha256 == second.model.sha256
    assert hashed[0] > 0
    assert hashed[1] == 0
    damaged = tmp_path / "model" / "weights.arrow"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    os.utime(damaged, ns=(time.time_ns(), time.time_ns()))
    with pytest.raises(Corrupt):
        open_predictor_soon(tmp_path / "model", memory)


def test_a_warm_up_ends_before_its_service_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it compiles kernels while the folders of the service are removed."""
    plain_model(tmp_path / "model", FEATURES)
    closing, ended = threading.Event(), list[str]()

    class LoadedModels(dict[ModelKey, LoadedModel]):
        def clear(self) -> None:
            closing.set()

    def warm_up(predictor: Predictor) -> None:
        assert closing.wait(600)
        time.sleep(0.1)  # without the wait, `close` returns in that time
        ended.append(predictor.model.sha256)

    monkeypatch.setattr(loading, "_warm_up_search", warm_up)
    monkeypatch.setattr(SearchIndex, "is_compiled", False)
    loader = ModelLoader(lambda tenant: Registry(tmp_path / tenant), Metrics())
    loader.loaded_models = LoadedModels()
    predictor = open_predictor_soon(tmp_path / "model")
    loader.close()
    assert ended == [predictor.model.sha256]
