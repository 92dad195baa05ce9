"""`agentctl` whose webhooks have short leases, and many attempts at short intervals."""

from __future__ import annotations

from agentctl.webhooks import attempts, deliveries

if __name__ == "__main__":
    attempts.SCHEDULE = (0, *[0.3] * 200)
    deliveries.LEASE_SECONDS = 5.0
    from agentctl.cli.app import main

    raise SystemExit(main())
