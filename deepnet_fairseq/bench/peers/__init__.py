"""Models of other packages as fairseq models, each a file that can be imported where its package is installed."""
