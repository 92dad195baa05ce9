"""`python -m agentctl` is `agentctl`."""

from agentctl.cli.app import main

if __name__ == "__main__":
    main()
