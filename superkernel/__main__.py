"""`python -m superkernel` is the command `superkernel`."""

import sys

from superkernel.cli import main

if __name__ == "__main__":
    sys.exit(main())
