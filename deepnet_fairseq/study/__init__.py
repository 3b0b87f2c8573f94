"""What recorded runs say: logs and scores (scoring/) -> tables (tables/) and figures (figures/).

A run is a folder or a record, see runs.py; published numbers stand in paper.toml and tables/tables.toml.
"""

import functools
import logging

LOGGED = {  # matplotlib's loggers, before it is imported -> how messages begin that a user can do nothing about
    "matplotlib": ("Matplotlib created a temporary cache directory", "mkdir -p failed for path"),  # HOME not writable
    "matplotlib.font_manager": ("generated new fontManager", "Matplotlib is building the font cache"),
}


def _is_news(beginnings: tuple[str, ...], record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(beginnings)


for _name, _beginnings in LOGGED.items():
    logging.getLogger(_name).addFilter(functools.partial(_is_news, _beginnings))
