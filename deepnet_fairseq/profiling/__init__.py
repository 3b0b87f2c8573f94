"""Admin's profiling: hooks that measure every branch, the omegas that follow, the file they travel in.

recorder.py watches branches, omega.py has Admin's rule, profile.py the file, start.py and command.py the moment: before
a training, or by itself.
"""
