"""The HTTP API: routes by resource, authentication, and the use cases behind the routes.

app             the FastAPI application and its error responses
server          the daemon's process: HTTP server, scheduler service, signals
connections     whose connections a listener keeps
http_protocol   deadlines of a connection
admission       caller, size and body of a request, before any route
browsers        authentication of browsers
daemon_names    names for the daemon in addresses of clients
identity        authentication and permissions of callers
job_tokens      authentication of calls from jobs
struct_body     request bodies that are msgspec structs
request         dependencies of all routes: daemon, scheduler service, caller
selection       the jobs that a request refers to
submissions, changes, modifications, jobs, explanations   routes of jobs
clusters, licences, reservations, tokens, events          routes of other resources
reports         the route of reports
calendar        the route that lists what recurs
notifications   the route of notifications, and mails that jobs ask for
policy          the policy in force, its versions, and the acts that change it
reload          the route that reads the configuration again
submission_keys idempotency keys
metrics         readings and counters for Prometheus
readiness       whether the daemon accepts work, without a credential
reference       the OpenAPI document, and the same as a page
"""
