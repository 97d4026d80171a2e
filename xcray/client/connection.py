"""One connection: requests tried again where that is safe, streams taken up where they broke, problems raised as errors."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import httpx

from xcray import errors
from xcray.client.results import Event
from xcray.errors import InputError, Unavailable, XcrayError

BLOCK: Final = 1 << 20
KEY: Final = "XCRAY_KEY"
KEY_FILE: Final = "XCRAY_KEY_FILE"
LONGEST_PAUSE: Final = 5.0  # seconds between tries
STREAM_SILENCE: Final = 60.0  # seconds; the service speaks every 15
LOCAL: Final = ("127.0.0.1", "localhost", "::1")
TOLD: Final = frozenset({"type", "title", "detail", "code", "kind", "hint", "message"})  # of a problem, beside its details
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
} | {"DataError": InputError}  # a DataError is made from its place, which its message here holds already


class Connection:
    """HTTP to one service. url, key, timeout, retries, transport: see `Client`."""

    def __init__(self, url: str, *, key: str | None, timeout: float, retries: int, transport: httpx.BaseTransport | None) -> None:
        self.url = url.rstrip("/")
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL:
            parsed = httpx.URL("")
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InputError(f"{url[:80]!r} is not a URL: use one like http://127.0.0.1:8000", code="URL")
        key = key_of(key)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        trust_env = parsed.host not in LOCAL  # a proxy of the environment can't reach our own machine
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, transport=transport, trust_env=trust_env)
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
        tries = self._retries if again or method in ("GET", "PUT") else 0
        params = {name: value for name, value in (query or {}).items() if value is not None}
        for left in range(tries, -1, -1):
            try:
                if content is None:
                    found = self._http.request(method, path, params=params, json=body, headers=headers)
                else:
                    found = self._send_file(method, path, params, content)
                return _answer(found)
            except httpx.HTTPError as error:
                if not left:
                    raise self._unreachable(error) from error
                time.sleep(_pause(tries - left))
            except Unavailable as error:
                if not left:
                    raise
                time.sleep(min(LONGEST_PAUSE, float(error.details.get("retry_after", _pause(tries - left)))))
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
                with self._http.stream("GET", path, headers={"Last-Event-ID": str(after)}, timeout=STREAM_SILENCE) as found:
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
                    raise self._unreachable(error) if isinstance(error, httpx.HTTPError) else error from error
                time.sleep(_pause(failures))

    def _send_file(self, method: str, path: str, params: Mapping[str, Any], content: Path) -> httpx.Response:
        """A file as the body, read as it is sent."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(content.stat().st_size)}
        with open(content, "rb") as source:
            blocks = iter(lambda: source.read(BLOCK), b"")
            return self._http.request(method, path, params=params, content=blocks, headers=headers)

    def _unreachable(self, error: httpx.HTTPError) -> Unavailable:
        """Nobody answered."""
        if isinstance(error, httpx.TimeoutException):
            return Unavailable(f"{self.url} did not answer in time: try again, or with a larger timeout", code="TIMEOUT")
        return Unavailable(f"nobody answers at {self.url}: start one with `xcray serve`, or check the address", code="NO_SERVER")


def key_of(given: str | None) -> str | None:
    """The key to send: the one given, else XCRAY_KEY, else what the file XCRAY_KEY_FILE holds; None for none. Raises InputError."""
    found, path = given or os.environ.get(KEY), os.environ.get(KEY_FILE)
    if not found and path:
        try:
            found = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise InputError(f"{KEY_FILE} names no file that can be read: {path[:200]!r}", code="KEY_FILE") from None
    found = (found or "").strip()
    if not all("!" <= letter <= "~" for letter in found):
        raise InputError("the key has characters that no key has: it begins with xck_ and has no blanks", code="KEY")
    return found or None


def _pause(failures: int) -> float:
    """Seconds to wait after so many failures: doubling, and spread, so that many clients do not come back at once."""
    return float(min(LONGEST_PAUSE, 0.1 * 2**failures) * random.uniform(0.5, 1.0))


def _answer(found: httpx.Response) -> Any:
    """The content of an answer, or its problem raised."""
    if found.is_error:
        _raise(found)
    if found.status_code == 204 or not found.content:
        return None
    return found.json() if found.headers.get("content-type", "").startswith("application/json") else found.text


def _raise(found: httpx.Response) -> NoReturn:
    """Raise the class of xcray.errors that a problem document names."""
    try:
        problem = found.json()
        kind = KINDS.get(problem["kind"], XcrayError)
        message, code = str(problem["detail"]), str(problem["code"])
    except (ValueError, KeyError, TypeError):  # not ours: a proxy's, perhaps
        other = Unavailable if found.status_code >= 500 else InputError
        raise other(f"{found.request.url.host} answered {found.status_code} {found.reason_phrase}", code="HTTP") from None
    details = {name: value for name, value in problem.items() if name not in TOLD}
    if found.headers.get("retry-after", "").isdecimal():
        details["retry_after"] = int(found.headers["retry-after"])
    raise kind(message, code=code, hint=problem.get("hint"), **details)


def _events(lines: Iterator[str]) -> Iterator[Event]:
    """Events of a stream's lines; comments and what was cut off are left out."""
    fields: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and "data" in fields and "id" in fields:
            data = json.loads(fields["data"])
            yield Event(seq=int(fields["id"]), time=str(data.pop("time", "")), kind=fields.get("event", "message"), data=data)
            fields = {}
        elif not line:
            fields = {}
