"""Admin's profiling: hooks that measure every branch, the omegas that follow, the file they travel in."""
