"""The list for minutes of a GPU: its parts, and the program that runs those that are open. See docs/gpu_minutes.md.

A part is one entry of the list. It runs in a process of its own and yields rows: dictionaries of what it measured, each
with a "what" that names the measurement. A record tells one try of a part, with its rows. A part is open until a record
says that it was done.
"""
