"""Python client of the service: typed dictionaries as results, xcray.errors classes as problems.

with Client("http://127.0.0.1:8000") as client:
    data = client.datasets.wait(client.datasets.build("pydocs", "pydocs")["id"])
    job = client.jobs.submit(dataset=data["id"], model="pydocs")
    client.jobs.wait(job["id"], on_event=print)
    client.predict("pydocs", ["read rows of a csv file into dictionaries"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeAlias

import httpx

from xcray.api.job_replies import Ready, SolverView
from xcray.api.model_replies import ExplainReply, PredictReply
from xcray.client.connection import Connection
from xcray.client.datasets import Datasets
from xcray.client.models import Models
from xcray.client.resources import Jobs, quote_reference

__all__ = ["Client"]

Instance: TypeAlias = "str | Mapping[str, Any]"  # a text, or an instance of a request


class Client:
    """A client of one service. Thread-safe.

    url: address of the service. key: API key; by default XCRAY_KEY, else the content of the file
    XCRAY_KEY_FILE. timeout: seconds per response; a service works up to 120 s for one. retries: how
    often an idempotent request is repeated. transport: an httpx transport to use instead of the
    network. Every method raises the xcray.errors class that the service names, and Unavailable if
    there is no response.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        timeout: float = 150.0,
        retries: int = 3,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._connection = Connection(
            url, key=key, timeout=timeout, retries=retries, transport=transport
        )
        self.url = self._connection.url
        self.datasets = Datasets(self._connection)
        self.jobs = Jobs(self._connection)
        self.models = Models(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def readiness(self) -> Ready:
        """Return whether the service accepts requests, and why if it does not.

        Raises Unavailable if it does not answer.
        """
        return self._connection.get_status("/readyz")[1]

    def metrics(self) -> str:
        """Return the metrics in the text format of Prometheus; needs the scope metrics."""
        return self._connection.get_text("/metrics", {})[0]

    def predict(
        self,
        model: str,
        instances: Sequence[Instance],
        *,
        top_k: int = 5,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] | None = None,
        min_score: float | None = None,
        min_probability: float | None = None,
        label_thresholds: bool = False,
        deadline_ms: float | None = None,
        probabilities: bool = False,
        certificate: bool = False,
    ) -> PredictReply:
        """Predict the best labels of texts, or of sparse rows {"indices": [...], "values": [...]}.

        model: name, name@alias or name:version. allow, deny: label names, or "set:NAME" for a label
        set of the model. min_score, min_probability: labels below them are left out;
        label_thresholds: and those below the thresholds of the model for each label. deadline_ms:
        time for all instances; after it the best labels found so far are returned. probabilities,
        certificate: whether to include these.
        """
        filters = {
            "allow": allow and [*allow],
            "deny": deny and [*deny],
            "min_score": min_score,
            "min_probability": min_probability,
            "label_thresholds": label_thresholds or None,
            "deadline_ms": deadline_ms,
        }
        extras = {"probabilities": probabilities or None, "certificate": certificate or None}
        body = {"instances": [_instance(each) for each in instances], "top_k": top_k}
        body |= {name: value for name, value in {**filters, **extras}.items() if value is not None}
        return self._ask(model, "predict", body)

    def explain(
        self, model: str, instance: Instance, *, label: str | None = None, top: int = 10
    ) -> ExplainReply:
        """Return the features that contribute most to the score of a label.

        label: default is the best label.
        """
        body = {"instance": _instance(instance), "top": top} | (
            {} if label is None else {"label": label}
        )
        return self._ask(model, "explain", body)

    def _ask(self, model: str, verb: str, body: Mapping[str, Any]) -> Any:
        path = f"/v1/models/{quote_reference(model)}:{verb}"
        return self._connection.request("POST", path, body=body, is_repeatable=True)

    def solvers(self) -> list[SolverView]:
        """Return the solvers with their parameters: types, defaults, ranges, help."""
        return self._connection.request("GET", "/v1/solvers")["solvers"]

    def health(self) -> dict[str, Any]:
        """Return the liveness status and the version of xcray."""
        return self._connection.request("GET", "/healthz")


def _instance(instance: Instance) -> Mapping[str, Any]:
    """Return a text or a row as a request instance."""
    return {"text": instance} if isinstance(instance, str) else instance
