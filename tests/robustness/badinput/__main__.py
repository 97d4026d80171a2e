"""Send the catalogue through a real service: python -m tests.robustness.badinput [FAMILY ...].

Prints the failures, and one JSON line.
"""

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.robustness.badinput.families import FAMILIES
from tests.robustness.badinput.service import faults, left_of, send
from tests.support.live_service import client_of, settings_for
from xcray.service.app import create_app


def main() -> int:
    """Send all rows, one family at a time; return 1 if the service handled a row wrongly."""
    started, n, wrong = time.monotonic(), 0, 0
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "home"
        http = stack.enter_context(client_of(create_app(settings_for(home))))
        for format in sys.argv[1:] or FAMILIES:
            family = FAMILIES[format]
            messages = [send(http, format, case) for case in family.BAD if case.over_http]
            for each in messages:
                n += 1
                result = faults(http, each, home)
                wrong += bool(result)
                for fault in result:
                    print(f"{format} {each.case.id}: {fault}")
            print(f"{format}: {len(messages)} rows", flush=True)
        left = len(left_of(home))
    print(
        json.dumps(
            {
                "rows": n,
                "wrong": wrong,
                "left": left,
                "seconds": round(time.monotonic() - started, 1),
            }
        )
    )
    return int(bool(wrong or left))


if __name__ == "__main__":
    sys.exit(main())
