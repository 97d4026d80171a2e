"""The short rotation drill: a new database role and a new first key do not interrupt requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.deployment.chart.helm import helms
from tests.deployment.chart.rotation import Drill, by_roles, manifests
from tests.support.missing_tools import say

pytestmark = pytest.mark.drill


def test_a_new_database_role_and_a_new_first_key_interrupt_no_request(
    tmp_path: Path, postgres: Any
) -> None:
    """Real processes run the rendered commands in the order of docs/operations.md.

    `python -m tests.deployment.chart.rotation` also tests jobs on a runner and a changed password.
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
