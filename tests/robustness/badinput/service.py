"""The catalogue sent to a real service: uploads, builds in a child process, errors, leftovers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.robustness.badinput.case import Bad, wrong

RAW = {"Content-Type": "application/octet-stream"}
PATIENCE = 600.0  # seconds; builds wait for each other


class SentCase(NamedTuple):
    """A case that was sent: the replies so far, and the id of its data set if one was accepted."""

    format: str
    case: Bad
    replies: list[httpx.Response]
    id: str | None


def send(http: httpx.Client, format: str, case: Bad) -> SentCase:
    """Upload the files of a case and request a data set."""
    replies, uploads = [], {}
    for part, data in (("train", case.data), ("test", case.test)):
        if data is not None:
            replies.append(http.post("/v1/uploads", content=data, headers=RAW))
            if replies[-1].status_code != 201:
                return SentCase(format, case, replies, None)
            uploads[part] = replies[-1].json()["id"]
    request = {"name": "asked", "format": format, "options": case.options, "uploads": uploads}
    replies.append(http.post("/v1/datasets", json=request))
    return SentCase(format, case, replies, replies[-1].json().get("id"))


def outcome(http: httpx.Client, messages: SentCase) -> dict[str, Any]:
    """Return the data set once it is not BUILDING any more; {} if none was accepted."""
    end = time.monotonic() + PATIENCE
    while messages.id is not None and time.monotonic() < end:
        reply = http.get(f"/v1/datasets/{messages.id}")
        messages.replies.append(reply)
        if reply.json()["status"] != "BUILDING":
            return dict(reply.json())
        time.sleep(0.05)
    return {}


def faults(http: httpx.Client, messages: SentCase, home: Path) -> list[str]:
    """Return the errors in how the service handled a case; empty if it is correct.

    Correct is: refused at once with a 4xx (an empty body), or accepted and then FAILED with the
    error of the case. There is no 5xx and no path of the server in any reply. No folder of the data
    set and no build request is left.
    """
    result, case = outcome(http, messages), messages.case
    out = [f"status {reply.status_code}" for reply in messages.replies if reply.status_code >= 500]
    out += [
        "a path of the server"
        for reply in messages.replies
        if str(home) in reply.text or "/builds/" in reply.text
    ]
    if not case.data:
        document = messages.replies[-1].json()
        expected = (messages.replies[-1].status_code, document["code"]) == (
            400,
            "EMPTY_BODY",
        ) and "data file" in document["detail"]
        return out + ([] if expected else [f"an empty upload: {document}"])
    if result.get("status") != "FAILED":
        return [*out, f"not FAILED: {result}"]
    stats = result["stats"]
    first = stats["errors"][0] if stats["errors"] else stats["problem"]
    out += wrong(case, first, f"train.{messages.format}" if not case.file else None)
    out += [] if stats["problem"]["code"] == case.code else [f"the problem is {stats['problem']}"]
    out += [] if len(stats["errors"]) <= 20 else ["more than 20 errors"]
    out += [f"left: {path.name}" for path in left_of(home, f"*{messages.id}*")]
    train = http.post("/v1/jobs", json={"dataset": messages.id, "solver": "ppdsparse"})
    if not 400 <= train.status_code < 500:
        out.append(f"a job on a missing data set: {train.status_code}")
    return out


def left_of(home: Path, pattern: str = "*") -> list[Path]:
    """Return the leftovers in the data set folders.

    The service removes them right after it reports the result, so this function waits for it.
    """
    end, left = time.monotonic() + PATIENCE, [home]
    while left and time.monotonic() < end:
        left = [
            path
            for room in ("datasets", "builds", "uploads")
            for path in (home / room).glob(pattern)
        ]
        time.sleep(0.02 if left else 0)
    return left
