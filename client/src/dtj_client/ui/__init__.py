"""`kubectl dtj ui`: jobs in a browser on the user's own machine, read only.

server.py    addresses, the token, headers
cluster.py   what is read from the cluster, while a page shows it
watch.py     one list of objects, kept up to date
views.py     an object -> what a page shows of it; pure
static/      the pages; they insert every text as text, never as HTML
"""
