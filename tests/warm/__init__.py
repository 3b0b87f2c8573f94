"""Programs in forks of a process that has imported torch and fairseq: 1 s to start, not 4."""
