"""Tests of the faces without a server, on the events of recorded runs."""
