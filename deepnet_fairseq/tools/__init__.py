"""What a user asks around a training: will it train, does it fit, how fast is it, where does it go from here."""
