"""`python -m pytest_decodegate`: the command `decodegate`, where no script is on the PATH."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
