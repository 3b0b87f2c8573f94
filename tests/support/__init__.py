"""What several test files stand on: trainings, corpora, servers and models made for tests; no test is here."""
