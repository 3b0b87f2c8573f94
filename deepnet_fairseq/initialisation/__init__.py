"""Where weights begin: base distributions by name, a visit of every parameter, expected against measured std.

profiles.py has the distributions, visit.py draws every parameter once, report.py compares.
"""
