"""HTTP: routes, identity of callers, and the use cases behind the routes.

app             the FastAPI application
server          the daemon's process: HTTP server, scheduler service, signals
identity        who is calling, and what they may do
request         what every route receives
selection       which jobs a request means
submissions, changes, modifications, jobs, explanations   jobs
clusters, licences, reservations, tokens                  everything else
"""
