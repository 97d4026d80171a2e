"""The service from Python: the same nouns as its paths, results as typed dictionaries, problems as the classes of xcray.errors.

with Client("http://127.0.0.1:8000") as client:
    data = client.datasets.wait(client.datasets.build("pydocs", "pydocs")["id"])
    job = client.jobs.submit(dataset=data["id"], model="pydocs")
    client.jobs.wait(job["id"], on_event=print)
    client.predict("pydocs", ["read rows of a csv file into dictionaries"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias, cast
from urllib.parse import quote

import httpx

from xcray.client.connection import Connection
from xcray.client.resources import Datasets, Jobs, Models, part_of
from xcray.client.types import Explanation, Predictions

__all__ = ["Client"]

Instance: TypeAlias = "str | Mapping[str, Any]"  # a text, or {"text"} or {"indices", "values"}


class Client:
    """A connection to a service. Safe for many threads.

    url: where it is. key: a key of the service; else the one in XCRAY_KEY, else in the file that XCRAY_KEY_FILE names. timeout:
    seconds for one answer. retries: how often a request that may be repeated safely is tried again. transport: an httpx transport
    instead of the network.
    Every method raises the class of xcray.errors that the service names; Unavailable when nobody answers.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        timeout: float = 60.0,
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._connection.close()

    def predict(
        self,
        model: str,
        instances: Sequence[Instance],
        *,
        top_k: int = 5,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] | None = None,
        deadline_ms: float | None = None,
        probabilities: bool = False,
        certificate: bool = False,
    ) -> Predictions:
        """The best labels of texts, or of sparse rows {"indices": [...], "values": [...]}.

        model: name, name@alias or name:version. allow, deny: names of labels, and "set:NAME" for a set of the model's.
        deadline_ms: time for all instances; then the best found so far. probabilities, certificate: tell these, too.
        """
        wanted = {"allow": allow and [*allow], "deny": deny and [*deny], "deadline_ms": deadline_ms}
        told = {"probabilities": probabilities or None, "certificate": certificate or None}
        body = {"instances": [_instance(each) for each in instances], "top_k": top_k}
        body |= {name: value for name, value in {**wanted, **told}.items() if value is not None}
        return cast(
            Predictions,
            self._connection.ask(
                "POST", f"/v1/models/{_reference(model)}:predict", body=body, again=True
            ),
        )

    def explain(
        self, model: str, instance: Instance, *, label: str | None = None, top: int = 10
    ) -> Explanation:
        """Which features made the score of a label; of the best one when `label` is None."""
        body = {"instance": _instance(instance), "top": top} | (
            {} if label is None else {"label": label}
        )
        return cast(
            Explanation,
            self._connection.ask(
                "POST", f"/v1/models/{_reference(model)}:explain", body=body, again=True
            ),
        )

    def health(self) -> dict[str, Any]:
        """Alive, and which version of xcray."""
        return cast("dict[str, Any]", self._connection.ask("GET", "/healthz"))


def _reference(model: str) -> str:
    """name, name@alias or name:version as part of a path."""
    part_of(model)
    return quote(model, safe="@:")


def _instance(given: Instance) -> Mapping[str, Any]:
    """What a request carries for a text or a row."""
    return {"text": given} if isinstance(given, str) else given
