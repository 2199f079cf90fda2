"""Drawn calls of the public functions against references in float64, and damaged files: `python -m fuzz`, `make fuzz`.

A case is a pure function of (seed, number), so a failure is named by two numbers and can be run again.
"""
