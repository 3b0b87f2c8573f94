"""Helpers shared by several test files: trainings, corpora, servers and models; no tests."""
