"""The desk: runs that wait for a decision or for their turn, and the decisions about them.

It works on rows alone. How a live run pauses and how its next leg starts is in `runs/life`.
"""
