"""Checks of `helm test`: the service is alive and ready, and accepts only requests with a key.

It uses only Python's standard library. Environment: URL, KEY_FILE (unset: no keys), CERTIFICATE (if
the pods serve TLS), MODEL (if set, a prediction is requested).
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request


def ask(path: str, key: str = "", body: object = None) -> tuple[int, str]:
    """Return the status and text of a response; status 0 without a response."""
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
    """Return an SSL context that trusts only the pods' own certificate.

    Its host names are external, so they are not checked.
    """
    if "CERTIFICATE" not in os.environ:
        return None
    trusted = ssl.create_default_context(cafile=os.environ["CERTIFICATE"])
    trusted.check_hostname = False
    trusted.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return trusted


def expect(what: str, status: int, path: str, key: str = "", body: object = None) -> None:
    """Request until the response has that status, for one minute; print it, or exit with 1."""
    for _ in range(30):
        found, text = ask(path, key, body)
        if found == status:
            print(f"ok: {what} ({path}: {status}) {text[:200]}", flush=True)
            return
        time.sleep(2)
    sys.exit(f"failed: {what}: {path} gave {found} instead of {status}: {text[:500]}")


def main() -> None:
    """Run all checks in turn."""
    key = ""
    expect("alive", 200, "/healthz")
    expect("ready", 200, "/readyz")
    if "KEY_FILE" in os.environ:
        expect("requests without a key are rejected", 401, "/v1/models")
        with open(os.environ["KEY_FILE"]) as file:
            key = file.read().strip()
    expect("the admin key is accepted" if key else "requests need no key", 200, "/v1/models", key)
    if "MODEL" in os.environ:
        body = {"instances": [{"text": "a question"}], "top_k": 1}
        expect(
            "a model returns a prediction",
            200,
            f"/v1/models/{os.environ['MODEL']}:predict",
            key,
            body,
        )


main()
