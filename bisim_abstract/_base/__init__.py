"""What every room stands on, and what knows no model.

Types, checks of arguments, labels, texts, rounding, memory, parallel work here and on Ray,
progress, compiling, atomic files. Imports nothing of this package but its errors.
"""
