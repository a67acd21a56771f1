"""`python -m honestly` is the command `honestly`."""

import sys

from honestly.cli import main

sys.exit(main())
