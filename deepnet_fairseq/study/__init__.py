"""What recorded runs say: logs and scores (scoring/) -> tables (report/) and figures (figures/).

A run is a folder, see recorded_run.py; published numbers stand in paper.py and report/tables.toml.
"""
