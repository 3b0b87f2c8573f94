"""Logs -> rows -> tables and figures."""
