"""What people see: command line, run directories, sources of models, plots and report.

Knows everything; no other room imports it.
"""
