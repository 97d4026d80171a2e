"""The rotation drill that is quick: the database's role and the first key change under pods that
answer, and nobody notices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.deployment.chart.helm import helms
from tests.deployment.chart.rotation import Drill, by_roles, manifests
from tests.support.missing_tools import say

pytestmark = pytest.mark.drill


def test_the_databases_role_and_the_first_key_change_and_no_request_fails(
    tmp_path: Path, postgres: Any
) -> None:
    """Rendered commands and environment, real processes, in the order of docs/operations.md. By
    hand, with jobs on a runner, and with one role whose password changes: `python -m
    tests.deployment.chart.rotation`.
    """
    if not helms():
        say("helm, for values of one's own", "no secret was rotated under rendered pods")
        return
    with Drill(postgres, tmp_path, manifests(), runner=False) as drill:
        by_roles(drill)
        drill.judge()
    assert drill.broken == []
    assert drill.facts["predictions"]["200"] > 5
    assert drill.facts["older_keys_end_in_hours"] == [24]
