"""What recorded runs say: logs and scores (scoring/) -> tables (tables/) and figures (figures/).

A run is a folder or a record, see runs.py; published numbers stand in paper.toml and tables/tables.toml.
"""
