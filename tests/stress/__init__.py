"""Fuzzing and soak: `python -m tests.stress.fuzz` and `python -m tests.stress.soak`."""
