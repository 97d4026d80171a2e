"""python -m tests.robustness.fuzz: puts the folder of the tests on the path, where this package and its neighbours are found."""

import sys

from tests.robustness.fuzz.command import main

sys.exit(main(sys.argv[1:]))
