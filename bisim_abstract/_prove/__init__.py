"""From a model to a certificate.

The goal, one driver loop with budgets, progress, interruption and checkpoints, and the methods
that it drives (blocks, covering). Decides where to look next and when to stop; only the arms say
what is true.
"""
