"""A page in the browser that shows the layer at work: digits, filters and scenes. It needs no network.

`answers` and `filters` compute, `rendering` makes pictures of arrays, `routes` checks what the browser sent, `server`
serves the answers and the files under `static/`.
"""
