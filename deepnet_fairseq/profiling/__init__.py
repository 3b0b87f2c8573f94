"""Admin's profiling: hooks that measure every branch and the omegas that follow (omega.py), the file they travel in and
the moment when a model takes them (profile.py).
"""
