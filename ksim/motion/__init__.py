"""Reference motions: their files, and the library of clips that a policy learns to track.

`motion` has one clip and how it is resampled and differentiated, `files` reads and writes it, and `load` puts many into
a `library`, whose arrays the terms of a task look up. Only `library` is imported with ksim; the others load SciPy.
"""
