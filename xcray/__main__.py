"""Run the command `xcray`, also as `python -m xcray`."""

from __future__ import annotations

import sys


def run() -> int:
    """Run one command and return its exit code, also if Ctrl-C interrupts the first imports."""
    try:
        from xcray.cli.main import main
    except KeyboardInterrupt:
        print("error INTERRUPTED: interrupted", file=sys.stderr)
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(run())
