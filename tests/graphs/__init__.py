"""Tests of graphs of LangGraph as cookbooks write them, on a real server."""
