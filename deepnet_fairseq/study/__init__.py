"""Recorded runs in, tables and figures out: logs and scores (scoring/) become the pages of tables.py and the pictures
of figures.py.

A run is a folder or a record, see runs.py; published numbers stand in paper.toml and tables.toml.
"""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns of caches, about which a user can do nothing
