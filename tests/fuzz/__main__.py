"""python -m tests.fuzz: puts the folder of the tests on the path, where this package and its neighbours are found."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from fuzz.command import main

sys.exit(main(sys.argv[1:]))
