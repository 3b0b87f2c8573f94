"""The list for minutes of a GPU: its parts, and the program that runs those that are open. See docs/gpu_minutes.md."""
