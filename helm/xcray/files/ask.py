"""What `helm test` asks: alive, ready, a stranger is turned away, the admin key is not. Only
Python's own library.

In the environment: URL, KEY_FILE (none: no keys), CERTIFICATE (of pods that speak TLS themselves),
MODEL (asked for a prediction).
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request


def ask(path: str, key: str = "", body: object = None) -> tuple[int, str]:
    """Status and text of an answer; 0 where nobody answers."""
    headers = {"content-type": "application/json"} | (
        {"authorization": f"Bearer {key}"} if key else {}
    )
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ["URL"] + path, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10, context=context()) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def context() -> ssl.SSLContext | None:
    """Trust in the pods' own certificate, whose names are those outside: only that it is this one
    is checked.
    """
    if "CERTIFICATE" not in os.environ:
        return None
    trusted = ssl.create_default_context(cafile=os.environ["CERTIFICATE"])
    trusted.check_hostname = False
    trusted.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return trusted


def expect(what: str, status: int, path: str, key: str = "", body: object = None) -> None:
    """Ask until the answer has that status, a minute long; print it, or end with status 1."""
    for _ in range(30):
        found, text = ask(path, key, body)
        if found == status:
            print(f"ok: {what} ({path}: {status}) {text[:200]}", flush=True)
            return
        time.sleep(2)
    sys.exit(f"failed: {what}: {path} gave {found} instead of {status}: {text[:500]}")


def main() -> None:
    """Ask for everything in turn."""
    key = ""
    expect("alive", 200, "/healthz")
    expect("ready", 200, "/readyz")
    if "KEY_FILE" in os.environ:
        expect("strangers are turned away", 401, "/v1/models")
        with open(os.environ["KEY_FILE"]) as file:
            key = file.read().strip()
    expect(
        "the admin key opens" if key else "without keys, everybody may ask", 200, "/v1/models", key
    )
    if "MODEL" in os.environ:
        body = {"instances": [{"text": "a question"}], "top_k": 1}
        expect("a model answers", 200, f"/v1/models/{os.environ['MODEL']}:predict", key, body)


main()
