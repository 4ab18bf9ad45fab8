"""A page that shows a lake: `keytide ui`.

`server` listens and `access` decides who may ask; `guard` stands before everything. `app` has the
routes: each makes a view model, a frozen value that is pure of requests, and gives it to a
template. Pictures are functions from view models to SVG.
"""
