"""Jobs, their timeline, and their training report by label."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from xcray.api.job_replies import JobView
from xcray.api.options import JobOptions, TrainingOptions
from xcray.service.schemas.base import Name, Strict, View
from xcray.service.schemas.declared import with_parameters
from xcray.solvers import SOLVERS


def _list_solvers(schema: dict[str, Any]) -> None:
    """Add the names of the solvers to a schema, when the description is made."""
    schema["enum"] = list(SOLVERS)


class TrainingRequest(Strict):
    """A training to queue.

    `params` are the solver's parameters; they are validated before the job is accepted.
    """

    dataset: str = Field(
        min_length=1,
        max_length=64,
        description="Id or name of a data set; of several with one name the newest that did not "
        "fail, which must be READY.",
    )
    model: Name = Field(description="Name under which the model is published.")
    solver: str = Field("ppdsparse", max_length=64, json_schema_extra=_list_solvers)
    params: dict[str, Any] = Field(default_factory=dict)


JobRequest = with_parameters("JobRequest", TrainingRequest, TrainingOptions, JobOptions)


class JobPage(View):
    """A page of jobs, newest first."""

    jobs: list[JobView]
    next_page_token: str | None


class LabelTablePage(View):
    """A page of the training report by label, in order of labels.

    The columns are those of the model's label_table.arrow, and the name of the label.
    """

    labels: list[dict[str, Any]]
    next_page_token: str | None
