"""The commands of the README and of the manual's walk-throughs, taken from the pages and run as printed."""
