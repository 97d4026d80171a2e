"""HTTP connection: retries of idempotent requests, resumed streams, problems raised as errors."""

from __future__ import annotations

import json
import os
import random
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import httpx

from xcray import errors
from xcray.api.job_replies import EventInfo
from xcray.errors import InputError, NotFound, Unavailable, XcrayError
from xcray.parameters import require_type

BLOCK_BYTES: Final = 1 << 20
KEY_VARIABLE: Final = "XCRAY_KEY"
KEY_FILE_VARIABLE: Final = "XCRAY_KEY_FILE"
MAX_PAUSE_SECONDS: Final = 5.0  # between tries, unless Retry-After is longer
MAX_RETRY_AFTER_SECONDS: Final = 60.0  # longer waits raise the error
IDEMPOTENT_METHODS: Final = frozenset({"GET", "PUT", "DELETE"})
STREAM_TIMEOUT_SECONDS: Final = 60.0  # the service sends something every 15 seconds
LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "::1")
# Fields of a problem document that are not details of the error.
PROBLEM_FIELDS: Final = frozenset({"type", "title", "detail", "code", "kind", "hint", "message"})
ERROR_CLASSES: Final[dict[str, type[XcrayError]]] = {
    kind.__name__: kind
    for kind in (
        errors.Conflict,
        errors.Corrupt,
        errors.Fenced,
        errors.InputError,
        errors.NotCalibrated,
        errors.NotFound,
        errors.ParameterError,
        errors.Refused,
        errors.ShapeMismatch,
        errors.Stopped,
        errors.Unavailable,
        errors.XcrayError,
    )
} | {"DataError": InputError}  # the message of a DataError already includes its location


class Connection:
    """HTTP to one service. For the parameters see `Client`."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None,
        timeout: float,
        retries: int,
        transport: httpx.BaseTransport | None,
    ) -> None:
        require_type("url", url, str, "the address of a service, like http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL:
            parsed = httpx.URL("")
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InputError(
                f"{url[:80]!r} is not a URL: use one like http://127.0.0.1:8000", code="URL"
            )
        key = resolve_key(key)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # a proxy from the environment cannot reach the local machine
        trust_env = parsed.host not in LOCAL_HOSTS
        # httpx ignores SSL_CERT_FILE without trust_env
        authorities = os.environ.get("SSL_CERT_FILE")
        verify = (
            ssl.create_default_context(cafile=authorities)
            if authorities and parsed.scheme == "https"
            else True
        )
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=timeout,
            transport=transport,
            trust_env=trust_env,
            verify=verify,
        )
        self._retries = retries

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def request(self, method: str, path: str, **request: Any) -> Any:
        """Send one request; return JSON, text, or None for an empty response.

        request: see `_request_with_retries`.
        """
        return _decode(self._request_with_retries(method, path, **request))

    def create(self, path: str, *, key: str | None = None, **request: Any) -> Any:
        """Send a POST that creates something, with an idempotency key.

        The key makes it safe to repeat the request after a lost response.
        """
        return self.request(
            "POST",
            path,
            headers={"Idempotency-Key": key or uuid.uuid4().hex},
            is_repeatable=True,
            **request,
        )

    def get_text(self, path: str, query: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
        """Return a text and the response headers."""
        response = self._request_with_retries("GET", path, query=query)
        return response.text, response.headers

    def get_status(self, path: str) -> tuple[int, Any]:
        """Return the status and the JSON of a path whose errors have content, without retries.

        Raises Unavailable if the service does not answer.
        """
        try:
            response = self._http.request("GET", path)
        except httpx.HTTPError as error:
            raise self._unreachable_error(error) from error
        return response.status_code, _decode(response)

    def _request_with_retries(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content: Path | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        is_repeatable: bool = False,
    ) -> httpx.Response:
        """Return a successful response, with retries.

        content: a file as the body. is_repeatable: whether the request can be repeated. Raises the
        matching xcray.errors class.
        """
        tries = self._retries if is_repeatable or method in IDEMPOTENT_METHODS else 0
        params = {name: value for name, value in (query or {}).items() if value is not None}
        lost = False
        for left in range(tries, -1, -1):
            try:
                if content is None:
                    return _checked(
                        self._http.request(method, path, params=params, json=body, headers=headers)
                    )
                return _checked(self._send_file(method, path, params, content, headers))
            except httpx.HTTPError as error:
                lost = True
                if not left:
                    raise self._unreachable_error(error) from error
                time.sleep(_backoff(tries - left))
            except ValueError as error:  # infinity, NaN, or half of a surrogate pair
                raise InputError(f"the request can't be written: {error}") from error
            except NotFound:
                if method != "DELETE" or not lost:
                    raise
                return httpx.Response(204)  # an earlier try succeeded; its response was lost
            except Unavailable as error:
                retry_after = float(error.details.get("retry_after", 0.0))
                if not left or retry_after > MAX_RETRY_AFTER_SECONDS:
                    raise
                time.sleep(_retry_delay(retry_after, tries - left))
        raise AssertionError("unreachable: the last try returns or raises")

    def download(self, path: str, to: Path) -> None:
        """Download into a file block by block; restart if the connection breaks."""
        for left in range(self._retries, -1, -1):
            try:
                with self._http.stream("GET", path) as response, open(to, "wb") as out:
                    if response.is_error:
                        response.read()
                        _raise_problem(response)
                    for block in response.iter_bytes(BLOCK_BYTES):
                        out.write(block)
                    out.flush()
                    os.fsync(out.fileno())
                return
            except httpx.HTTPError as error:
                if not left:
                    raise self._unreachable_error(error) from error
                time.sleep(_backoff(self._retries - left))

    def stream(self, path: str, after: int) -> Iterator[EventInfo]:
        """Yield server-sent events after a sequence number, until the service ends the stream.

        The stream is resumed wherever the connection breaks.
        """
        failures = 0
        while True:
            try:
                with self._http.stream(
                    "GET",
                    path,
                    headers={"Last-Event-ID": str(after)},
                    timeout=STREAM_TIMEOUT_SECONDS,
                ) as response:
                    if response.status_code == 204:
                        return
                    if response.is_error:
                        response.read()
                        _raise_problem(response)
                    for event in _parse_events(response.iter_lines()):
                        after, failures = event["seq"], 0
                        yield event
            except (httpx.HTTPError, Unavailable) as error:
                failures += 1
                if failures > self._retries:
                    raise (
                        self._unreachable_error(error)
                        if isinstance(error, httpx.HTTPError)
                        else error
                    ) from error
                time.sleep(_backoff(failures))

    def _send_file(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any],
        content: Path,
        more: Mapping[str, str] | None,
    ) -> httpx.Response:
        """Send a file as the body, read while it is sent."""
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(content.stat().st_size),
            **(more or {}),
        }
        with open(content, "rb") as source:
            blocks = iter(lambda: source.read(BLOCK_BYTES), b"")
            return self._http.request(method, path, params=params, content=blocks, headers=headers)

    def _unreachable_error(self, error: httpx.HTTPError) -> Unavailable:
        """Return the error for a missing response."""
        if isinstance(error, httpx.TimeoutException):
            return Unavailable(
                f"{self.url} did not respond in time: try again, or use a larger timeout",
                code="TIMEOUT",
            )
        return Unavailable(
            f"no service responds at {self.url}: "
            "start one with `xcray serve`, or check the address",
            code="NO_SERVER",
        )


def resolve_key(headers: str | None) -> str | None:
    """Return the key: the argument, XCRAY_KEY, or the content of XCRAY_KEY_FILE, else None.

    Raises InputError.
    """
    key, path = headers or os.environ.get(KEY_VARIABLE), os.environ.get(KEY_FILE_VARIABLE)
    if not key and path:
        try:
            key = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise InputError(
                f"{KEY_FILE_VARIABLE} does not name a readable file: {path[:200]!r}",
                code="KEY_FILE",
            ) from None
    key = (key or "").strip()
    if not all("!" <= letter <= "~" for letter in key):
        raise InputError(
            "the key has invalid characters: it begins with xck_ and has no spaces",
            code="KEY",
        )
    return key or None


def _backoff(failures: int) -> float:
    """Return the delay in seconds after `failures`: exponential with jitter."""
    return float(min(MAX_PAUSE_SECONDS, 0.1 * 2**failures) * random.uniform(0.5, 1.0))


def _retry_delay(retry_after: float, failures: int) -> float:
    """Return the delay in seconds: at least the Retry-After of the service, plus jitter."""
    return retry_after + _backoff(failures) if retry_after else _backoff(failures)


def _checked(response: httpx.Response) -> httpx.Response:
    """Return a successful response; raise a problem."""
    if response.is_error:
        _raise_problem(response)
    return response


def _decode(response: httpx.Response) -> Any:
    """Return the content of a response."""
    if response.status_code == 204 or not response.content:
        return None
    return (
        response.json()
        if response.headers.get("content-type", "").startswith("application/json")
        else response.text
    )


def _raise_problem(response: httpx.Response) -> NoReturn:
    """Raise the xcray.errors class that a problem document names."""
    retry_after = response.headers.get("retry-after", "")
    wait: dict[str, Any] = {"retry_after": int(retry_after)} if retry_after.isdecimal() else {}
    try:
        problem = response.json()
        kind = ERROR_CLASSES.get(problem["kind"], XcrayError)
        message, code = str(problem["detail"]), str(problem["code"])
    except (ValueError, KeyError, TypeError):  # not a problem document; possibly from a proxy
        other = (
            Unavailable
            if response.status_code >= 500 or response.status_code == 429
            else InputError
        )
        raise other(
            f"{response.request.url.host} returned {response.status_code} {response.reason_phrase}",
            code="HTTP",
            **wait,
        ) from None
    details = {name: value for name, value in problem.items() if name not in PROBLEM_FIELDS}
    raise kind(message, code=code, hint=problem.get("hint"), **{**details, **wait})


def _parse_events(lines: Iterator[str]) -> Iterator[EventInfo]:
    """Yield the events of a stream; comments and incomplete events are skipped."""
    fields: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and "data" in fields and "id" in fields:
            data = json.loads(fields["data"])
            yield EventInfo(
                seq=int(fields["id"]),
                time=str(data.pop("time", "")),
                kind=fields.get("event", "message"),
                data=data,
            )
            fields = {}
        elif not line:
            fields = {}
