"""Profiles made anew from the wheels on the index."""
