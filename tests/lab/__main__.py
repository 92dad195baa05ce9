"""`python -m tests.lab SCENARIO`: run a scenario of any length, and print what it has found."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from importlib import import_module

from tests.lab.judge import format_violations
from tests.lab.scenarios import SCENARIOS, format_scenarios


def main() -> int:
    """Run a scenario; return 1 if a rule was violated. Without one, print them all."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab",
        description=__doc__,
        epilog=format_scenarios(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    scenarios = parser.add_subparsers(dest="scenario", metavar="SCENARIO")
    modules = {name: import_module(scenario.module) for name, scenario in SCENARIOS.items()}
    for name, module in modules.items():
        scenario_parser = scenarios.add_parser(
            name, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_options(scenario_parser)
    options = parser.parse_args()
    if options.scenario is None:
        print(format_scenarios())
        return 0

    # SIGTERM raises KeyboardInterrupt, so that servers and the database are stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    violations = asyncio.run(modules[options.scenario].run(options))
    if not violations:
        print("no violations")
        return 0
    print(format_violations(violations))
    return 1


if __name__ == "__main__":
    sys.exit(main())
