"""python -m tests.deployment.chart.render: render the chart anew, for every values file, into
tests/deployment/chart/rendered.

What is committed there lets a machine without helm check the manifests; with helm a test holds it
to the chart. Exit status: 0 done, 1 no helm is here.
"""

from __future__ import annotations

import sys

from tests.deployment.chart.helm import RENDERED, committed, helms, manifest, values_files


def main() -> int:
    """Write all of them; take away what has no values file any more."""
    if not helms():
        print("no helm is here: python -m tests.deployment.chart.fetch build/tools")
        return 1
    RENDERED.mkdir(exist_ok=True)
    for path in RENDERED.glob("*.yaml"):
        if path.stem not in values_files():
            path.unlink()
    for name in values_files():
        text = manifest(name)
        same = committed(name).is_file() and committed(name).read_text() == text
        committed(name).write_text(text)
        print(f"{name}: {len(text.splitlines())} lines{'' if same else ', changed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
