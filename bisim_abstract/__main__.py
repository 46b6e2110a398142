"""`python -m bisim_abstract` is the command `bisim-abstract`."""

import sys

from bisim_abstract.cli import main

if __name__ == "__main__":
    sys.exit(main())
