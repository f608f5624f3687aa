"""`kubectl dtj ui`: jobs in a browser on the user's own machine, read only.

server.py    addresses, the token, headers
cluster.py   the jobs, and the document of each page
feed.py      what the page of one job reads while it is open
watch.py     one list of objects, kept up to date
log.py       the merged log of some replicas
agent.py     /status of a pod's agent
views.py     an object -> what a page shows of it; pure
timeline.py  status and Events -> phases and what happened; pure
curves.py    readings and agents' answers -> curves and a heat map; pure
static/      the pages; they insert every text as text, never as HTML
"""
