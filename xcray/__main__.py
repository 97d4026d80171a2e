"""Run the command `xcray` as `python -m xcray`."""

from __future__ import annotations

import sys

from xcray.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
