"""Multiple-choice items answered by a language model without training for them: the choice it finds likeliest."""
