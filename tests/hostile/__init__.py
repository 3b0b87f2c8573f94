"""Broken and hostile inputs, and a place to run the programs that read them."""
