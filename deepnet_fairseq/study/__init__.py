"""What recorded runs say: logs and scores (scoring/) -> tables (tables/) and figures (figures/).

A run is a folder, see runs.py; published numbers stand in paper.toml and tables/tables.toml.
"""
