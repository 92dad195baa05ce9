"""Tests of the console in a real browser, and its vendored libraries."""
