"""An artificial language pair, qaa -> qab (codes that ISO 639-2 reserves for local use).

qaa puts the finite verb second in main clauses and last in subordinate ones, splits separable verbs, marks three
genders, three cases and number on determiner and adjective, glues compounds and says three-and-twenty. qab is
subject-verb-object, has no case but two noun classes, puts adjectives after nouns and tens before units. Names are
invented anew for each sentence and spelled by qab's rules, so the vocabulary is open.
"""

LANGS = ("qaa", "qab")
