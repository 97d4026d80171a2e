"""Options are declared once: specs, commands, requests, client and console show the same."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from xcray.api.job_replies import ParameterView
from xcray.api.options import BatchOptions, JobOptions, TrainingOptions
from xcray.batch import BatchPredictSpec
from xcray.cli.main import commands_for
from xcray.client.resources import Jobs
from xcray.data.readers.options import ReadOptions
from xcray.errors import ParameterError, XcrayError
from xcray.parameters import declared_fields, parameter_table, service_default
from xcray.service.routes.batch import BatchRequest
from xcray.service.routes.health import STATIC
from xcray.service.schemas.jobs import JobRequest
from xcray.training import TrainSpec

TRAINING = {"dataset": "d", "model": "m"}
BATCH = {"upload": "up_1", "format": "svmlight"}
SHOWN: list[tuple[str, Any, tuple[type, ...]]] = [
    ("jobs submit", Jobs.submit, (TrainingOptions, JobOptions)),
    ("train", Jobs.estimate, (TrainingOptions,)),
    ("predict-batch", Jobs.predict, (BatchOptions,)),
]
REQUESTS: list[tuple[type[BaseModel], dict[str, Any], tuple[type, ...]]] = [
    (JobRequest, TRAINING, (TrainingOptions, JobOptions)),
    (BatchRequest, BATCH, (BatchOptions, JobOptions)),
]


def plain(text: str | None) -> str:
    """Return a text without case and without wrapped lines."""
    return " ".join((text or "").split()).lower()


@pytest.mark.parametrize(("words", "method", "declarations"), SHOWN)
def test_commands_and_the_client_show_each_option(
    words: str, method: Any, declarations: tuple[type, ...]
) -> None:
    command: Any = commands_for([])
    for word in words.split():
        command = command.commands[word]
    options = {each.name: each for each in command.params}
    arguments = inspect.signature(method).parameters
    for field in declared_fields(*declarations):
        about = field.metadata
        option = options[field.name]
        assert f"--{field.name.replace('_', '-')}" in option.opts
        assert plain(about["help"]) in plain(option.help)
        assert arguments[field.name].default == service_default(field)
        assert f"\n{field.name}: {about['help']}" in method.__doc__


@pytest.mark.parametrize(("request_type", "body", "declarations"), REQUESTS)
def test_requests_describe_and_check_each_option(
    request_type: type[BaseModel], body: dict[str, Any], declarations: tuple[type, ...]
) -> None:
    schema = request_type.model_json_schema()["properties"]
    defaults = request_type.model_validate(body).model_dump()
    for field in declared_fields(*declarations):
        about, shown = field.metadata, schema[field.name]
        assert plain(about["help"]) in plain(shown["description"])
        assert defaults[field.name] == service_default(field)
        text = json.dumps(shown)
        for choice in about.get("choices", ()):
            assert f'"{choice}"' in text
        for name, step in (("low", -1), ("above", 0), ("high", 1)):
            if about["kind"] in (int, float) and name in about:
                assert str(about[name]) in text
                with pytest.raises(ValidationError):
                    request_type.model_validate({**body, field.name: about[name] + step})


@pytest.mark.parametrize(
    ("spec", "places", "declaration"),
    [(TrainSpec, ("d",), TrainingOptions), (BatchPredictSpec, ("m", "i.svm"), BatchOptions)],
)
def test_specs_check_each_option(spec: Any, places: tuple[str, ...], declaration: type) -> None:
    usual = spec(*places)
    for field in declared_fields(declaration):
        about = field.metadata
        assert getattr(usual, field.name) == field.default
        wrong: list[Any] = [object()]
        wrong += ["no such choice"] if "choices" in about else []
        if about["kind"] in (int, float) and {"low", "above"} & about.keys():
            wrong += [about["low"] - 1] if "low" in about else [about["above"]]
            wrong += [about["high"] * 2, True, "many"]
        for value in wrong:
            with pytest.raises(XcrayError) as caught:
                spec(*places, **{field.name: value})
            assert isinstance(caught.value, ParameterError), field.name


def test_the_upload_form_names_reading_options() -> None:
    form = (STATIC / "console" / "upload.js").read_text()
    [labels] = re.findall(r"const LABELS = \{(.*?)\};", form, re.DOTALL)
    named = set(re.findall(r"(\w+): \"", labels)) - {"test_fraction"}
    assert named <= {field.name for field in fields(ReadOptions)}
    assert named >= {"text_fields", "label_field", "label_separator", "delimiter", "skip_bad"}


def test_the_console_reads_options_from_the_api() -> None:
    rows = parameter_table(TrainingOptions, JobOptions)
    page = TypeAdapter(list[ParameterView]).validate_python(rows)
    fields = declared_fields(TrainingOptions, JobOptions)
    assert [row["name"] for row in page] == [field.name for field in fields]
    form = (STATIC / "console" / "train.js").read_text()
    assert "training.filter(" in form
    assert "options.map(" in form
    for row in rows:
        assert not re.search(rf"\b(?:name|id)=\"?{row['name']}\"", form), row["name"]
