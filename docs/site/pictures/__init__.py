"""Pictures of what terms mean, each drawn from the values of the term itself, so that it cannot say another thing.

`python -m docs.site.pictures OUT_DIR` draws all of them as SVG files; `make site` does so first.
"""
