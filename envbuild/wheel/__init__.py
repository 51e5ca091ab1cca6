"""Wheels -> the bytes of a layer: read without trust, placed as an installer would, spliced; compressed only where
nobody has done it.

It knows neither locks nor recipes, so that the process which writes the heaviest layer begins in a tenth of a second.
"""
