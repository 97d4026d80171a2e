"""One BLAS thread per call, also in libraries that are loaded later."""

from __future__ import annotations

import os
import subprocess
import sys

LOADED_INSIDE = """
from threadpoolctl import threadpool_info
from xcray.system.blas_threads import limit_blas_threads
with limit_blas_threads():
    import scipy.linalg
    print([each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"])
"""


def test_a_library_that_is_loaded_inside_has_one_thread() -> None:
    """SciPy, which L-BFGS loads in its program, brings a BLAS of its own."""
    env = {name: value for name, value in os.environ.items() if "_NUM_THREADS" not in name}
    command = [sys.executable, "-c", LOADED_INSIDE]
    printed = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert printed.strip() in ("[1, 1]", "[1]")
