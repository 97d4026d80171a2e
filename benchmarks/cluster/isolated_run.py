"""Arguments, network namespaces and results of benchmarks that need a network for each part."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.robustness.faults.stage import INSIDE, enter, namespaces


def parse_isolated(parser: argparse.ArgumentParser, values: list[str]) -> argparse.Namespace:
    """Parse arguments, add --json, and continue in namespaces of this process.

    parser: its `prog` is "python -m MODULE". Raises SystemExit if namespaces are not available.
    """
    parser.add_argument(
        "--json", type=lambda text: Path(text).absolute(), help="also write the result to this file"
    )
    chosen = parser.parse_args(values)
    enter(values, module=parser.prog.rpartition(" ")[2])
    if not namespaces():
        raise SystemExit(
            "namespaces are not available: the head's processes cannot be isolated on this machine"
        )
    return chosen


def print_result(details: Mapping[str, Any], file: Path | None, **more: Any) -> int:
    """Print details as JSON, also to a file; return the exit status, 0 if nothing is broken.

    more: name of the benchmark, machine and settings, for the result.
    """
    result = {**more, "nodes": os.environ.get(INSIDE), **details}
    text = json.dumps(result, sort_keys=True)
    if file is not None:
        file.write_text(text + "\n")
    print(text)
    return 1 if details.get("broken") else 0
