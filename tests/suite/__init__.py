"""The suite itself: its layers, and the driver that runs them."""
