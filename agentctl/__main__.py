"""`python -m agentctl` is `agentctl`."""

import sys

from agentctl.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
