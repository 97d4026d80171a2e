"""Run the fuzzer: python -m tests.robustness.fuzz."""

import sys

from tests.robustness.fuzz.command import main

sys.exit(main(sys.argv[1:]))
