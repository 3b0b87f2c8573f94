"""Where weights begin: base distributions by name, a visit of every parameter, expected against measured std."""
