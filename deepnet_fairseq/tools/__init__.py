"""Tools around a training: compare, check, plan, average, generate, translate, verify and export."""
