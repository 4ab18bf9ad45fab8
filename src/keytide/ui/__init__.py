"""Web pages that show a lake: `keytide ui`.

`server` listens, `access` decides which requests are allowed, and `guard` checks every request.
`app` has the routes. Each builds a view model, a frozen value without request data, and renders a
template with it. Pictures are functions from view models to SVG.
"""
