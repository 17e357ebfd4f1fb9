"""Reference motions: their files, and the library of clips that a policy learns to track.

`motion` is one clip with resampling and differentiation, and `files` reads and writes it. `load` puts many clips into a
`library`, whose arrays the terms of a task index. Only `library` is imported with ksim; the others load SciPy.
"""
