"""Pictures of terms, each drawn from the values of the term itself, so that it always agrees with the code.

`python -m docs.site.pictures OUT_DIR` draws all of them as SVG files; `make site` does so first.
"""
