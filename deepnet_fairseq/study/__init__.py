"""Turn recorded runs, their logs and scores (scoring/), into the pages of tables.py and the pictures of figures.py.

A run is a folder or a record, see runs.py; published numbers stand in paper.py (figures) and experiments/ (tables).
experiments.py describes the trainings of a table or figure, and runner.py runs the programs of several at a time.
"""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no warnings about its caches, which a user cannot mend
