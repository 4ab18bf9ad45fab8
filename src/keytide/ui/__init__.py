"""Web pages that show a lake: `keytide ui`.

`server` listens, has the routes, and checks every request. `requests` decides which requests are
allowed. `table_pages` and `sql_pages` have the pages. Each builds a view model, a frozen value
without request data, and renders a template with it. Pictures are functions from view models to
SVG.
"""
