"""Many languages, one vocabulary: parallel text of many pairs -> binarised data for one multilingual model."""
