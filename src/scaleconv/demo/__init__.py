"""A page in the browser that shows the layer at work: digits, filters and scenes. It needs no network.

`answers` computes, `rendering` makes pictures of arrays, `limits` checks what the browser sent, `server` serves them
and the files under `static/`.
"""
