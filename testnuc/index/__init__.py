"""Nearest-neighbor search by cosine: exact for small pools, a usearch HNSW graph for larger ones.

`NearestVectors` indexes vectors by row number; pools map rows to texts. The file of a saved graph
can be mapped by several processes at the same time, because it never changes.
"""
