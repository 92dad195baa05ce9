"""What the faces make of the events of runs, without a server."""
