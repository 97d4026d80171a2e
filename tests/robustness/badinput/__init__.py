"""Every row of the bad-input catalogue: what is given, and what must come of it.

A file a family: svmlight (S), xc (X), parquet (P), tables (C) with json_lines, predict (J). The tests of each family read them, and
so do the fuzzers, as seeds.
"""

import pytest

pytest.register_assert_rewrite("badinput.build")
