"""One connection: requests tried again where that is safe, streams taken up where they broke, problems raised as errors."""

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
from xcray.client.types import Event
from xcray.errors import InputError, NotFound, Unavailable, XcrayError

BLOCK: Final = 1 << 20
KEY: Final = "XCRAY_KEY"
KEY_FILE: Final = "XCRAY_KEY_FILE"
LONGEST_PAUSE: Final = 5.0  # seconds between tries, unless the service says more
PATIENCE: Final = 60.0  # seconds; whoever is told to wait longer hears the error
REPEATABLE: Final = frozenset({"GET", "PUT", "DELETE"})
STREAM_SILENCE: Final = 60.0  # seconds; the service speaks every 15
LOCAL: Final = ("127.0.0.1", "localhost", "::1")
TOLD: Final = frozenset(
    {"type", "title", "detail", "code", "kind", "hint", "message"}
)  # of a problem, beside its details
KINDS: Final[dict[str, type[XcrayError]]] = {
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
} | {
    "DataError": InputError
}  # a DataError is made from its place, which its message here holds already


class Connection:
    """HTTP to one service. url, key, timeout, retries, transport: see `Client`."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None,
        timeout: float,
        retries: int,
        transport: httpx.BaseTransport | None,
    ) -> None:
        self.url = url.rstrip("/")
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL:
            parsed = httpx.URL("")
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InputError(
                f"{url[:80]!r} is not a URL: use one like http://127.0.0.1:8000", code="URL"
            )
        key = key_of(key)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        trust_env = (
            parsed.host not in LOCAL
        )  # a proxy of the environment can't reach our own machine
        authorities = os.environ.get(
            "SSL_CERT_FILE"
        )  # also for our own machine, where httpx would not look
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
        """Close its connections."""
        self._http.close()

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content: Path | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        again: bool = False,
    ) -> Any:
        """One request: JSON, text, or None for an empty answer. `content`: a file as the body. `again`: it may be repeated."""
        return _content(
            self._respond(
                method, path, body=body, content=content, query=query, headers=headers, again=again
            )
        )

    def create(self, path: str, *, key: str | None = None, **request: Any) -> Any:
        """A POST that makes something, under an idempotency key of its own when none is given: a lost answer does no harm."""
        return self.ask(
            "POST",
            path,
            headers={"Idempotency-Key": key or uuid.uuid4().hex},
            again=True,
            **request,
        )

    def text(self, path: str, query: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
        """A text and the headers that came with it."""
        found = self._respond("GET", path, query=query)
        return found.text, found.headers

    def _respond(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content: Path | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        again: bool = False,
    ) -> httpx.Response:
        """A good answer, asked for until it comes or patience ends. Raises the class of xcray.errors that fits."""
        tries = self._retries if again or method in REPEATABLE else 0
        params = {name: value for name, value in (query or {}).items() if value is not None}
        lost = False
        for left in range(tries, -1, -1):
            try:
                if content is None:
                    return _good(
                        self._http.request(method, path, params=params, json=body, headers=headers)
                    )
                return _good(self._send_file(method, path, params, content, headers))
            except httpx.HTTPError as error:
                lost = True
                if not left:
                    raise self._unreachable(error) from error
                time.sleep(_pause(tries - left))
            except NotFound:
                if method != "DELETE" or not lost:
                    raise
                return httpx.Response(204)  # the answer to an earlier try was lost: it is done
            except Unavailable as error:
                told = float(error.details.get("retry_after", 0.0))
                if not left or told > PATIENCE:
                    raise
                time.sleep(_later(told, tries - left))
        raise AssertionError("the last try returns or raises")

    def fetch(self, path: str, to: Path) -> None:
        """Download into a file, block by block; begun again when the connection breaks. Raises what is answered."""
        for left in range(self._retries, -1, -1):
            try:
                with self._http.stream("GET", path) as found, open(to, "wb") as out:
                    if found.is_error:
                        found.read()
                        _raise(found)
                    for block in found.iter_bytes(BLOCK):
                        out.write(block)
                    out.flush()
                    os.fsync(out.fileno())
                return
            except httpx.HTTPError as error:
                if not left:
                    raise self._unreachable(error) from error
                time.sleep(_pause(self._retries - left))

    def stream(self, path: str, after: int) -> Iterator[Event]:
        """Server-sent events after a number; taken up again wherever the connection breaks, until the service says that is all."""
        failures = 0
        while True:
            try:
                with self._http.stream(
                    "GET", path, headers={"Last-Event-ID": str(after)}, timeout=STREAM_SILENCE
                ) as found:
                    if found.status_code == 204:
                        return
                    if found.is_error:
                        found.read()
                        _raise(found)
                    for event in _events(found.iter_lines()):
                        after, failures = event["seq"], 0
                        yield event
            except (httpx.HTTPError, Unavailable) as error:
                failures += 1
                if failures > self._retries:
                    raise (
                        self._unreachable(error) if isinstance(error, httpx.HTTPError) else error
                    ) from error
                time.sleep(_pause(failures))

    def _send_file(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any],
        content: Path,
        more: Mapping[str, str] | None,
    ) -> httpx.Response:
        """A file as the body, read as it is sent."""
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(content.stat().st_size),
            **(more or {}),
        }
        with open(content, "rb") as source:
            blocks = iter(lambda: source.read(BLOCK), b"")
            return self._http.request(method, path, params=params, content=blocks, headers=headers)

    def _unreachable(self, error: httpx.HTTPError) -> Unavailable:
        """Nobody answered."""
        if isinstance(error, httpx.TimeoutException):
            return Unavailable(
                f"{self.url} did not answer in time: try again, or with a larger timeout",
                code="TIMEOUT",
            )
        return Unavailable(
            f"nobody answers at {self.url}: start one with `xcray serve`, or check the address",
            code="NO_SERVER",
        )


def key_of(given: str | None) -> str | None:
    """The key to send: the one given, else XCRAY_KEY, else what the file XCRAY_KEY_FILE holds; None for none. Raises InputError."""
    found, path = given or os.environ.get(KEY), os.environ.get(KEY_FILE)
    if not found and path:
        try:
            found = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise InputError(
                f"{KEY_FILE} names no file that can be read: {path[:200]!r}", code="KEY_FILE"
            ) from None
    found = (found or "").strip()
    if not all("!" <= letter <= "~" for letter in found):
        raise InputError(
            "the key has characters that no key has: it begins with xck_ and has no blanks",
            code="KEY",
        )
    return found or None


def _pause(failures: int) -> float:
    """Seconds to wait after so many failures: doubling, and spread, so that many clients do not come back at once."""
    return float(min(LONGEST_PAUSE, 0.1 * 2**failures) * random.uniform(0.5, 1.0))


def _later(told: float, failures: int) -> float:
    """Seconds to wait when the service says `told`: never less, and spread, so that all who were told the same come one by one."""
    return told + _pause(failures) if told else _pause(failures)


def _good(found: httpx.Response) -> httpx.Response:
    """An answer without a problem; a problem is raised."""
    if found.is_error:
        _raise(found)
    return found


def _content(found: httpx.Response) -> Any:
    """The content of an answer."""
    if found.status_code == 204 or not found.content:
        return None
    return (
        found.json()
        if found.headers.get("content-type", "").startswith("application/json")
        else found.text
    )


def _raise(found: httpx.Response) -> NoReturn:
    """Raise the class of xcray.errors that a problem document names."""
    told = found.headers.get("retry-after", "")
    wait: dict[str, Any] = {"retry_after": int(told)} if told.isdecimal() else {}
    try:
        problem = found.json()
        kind = KINDS.get(problem["kind"], XcrayError)
        message, code = str(problem["detail"]), str(problem["code"])
    except (ValueError, KeyError, TypeError):  # not ours: a proxy's, perhaps
        other = Unavailable if found.status_code >= 500 or found.status_code == 429 else InputError
        raise other(
            f"{found.request.url.host} answered {found.status_code} {found.reason_phrase}",
            code="HTTP",
            **wait,
        ) from None
    details = {name: value for name, value in problem.items() if name not in TOLD}
    raise kind(message, code=code, hint=problem.get("hint"), **{**details, **wait})


def _events(lines: Iterator[str]) -> Iterator[Event]:
    """Events of a stream's lines; comments and what was cut off are left out."""
    fields: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and "data" in fields and "id" in fields:
            data = json.loads(fields["data"])
            yield Event(
                seq=int(fields["id"]),
                time=str(data.pop("time", "")),
                kind=fields.get("event", "message"),
                data=data,
            )
            fields = {}
        elif not line:
            fields = {}
