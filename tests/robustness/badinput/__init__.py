"""The bad-input catalogue: inputs and their expected results.

There is one module per family: svmlight (S), xc (X), parquet (P), numpy_arrays (N), tables (C) with
json_lines, predict (J). The tests of each family use them, and the fuzzers use them as seeds.
"""

import pytest

pytest.register_assert_rewrite("tests.robustness.badinput.build")
