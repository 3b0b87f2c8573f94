"""Turn recorded runs, their logs and scores (scoring/), into the pages of tables.py and the pictures of figures.py.

A run is a folder or a record, see runs.py; published numbers stand in paper.toml (figures) and experiments/ (tables).
"""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its warnings about caches, which a user cannot act on
