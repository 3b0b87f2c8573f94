"""Files that lie elsewhere: fetched, verified, unpacked; whole under their name, or not there."""
