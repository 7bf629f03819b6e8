"""Pages for browsers. They show answers of the API; see docs/design.md.

gate       the middleware around pages: host, headers, sign-in, errors
sign_in    pages without a caller: sign-in and static files
forms      bodies of POST requests, safe against other sites
rendering  templates and their filters
visible    hidden and reordering characters as escapes
filters    filters of views
api_calls  calls of the API's routes, and their answers
charts     bars and plots as SVG
site, queue, job, licences, gantt, use, policy, events   the views
acts       what all acts have in common
job_acts   cancel, hold, release, requeue, modify, resolve
site_acts  drain, resume, totals of licences, cancelled reservations and series
reserve    new reservations
policy_acts   activated and undone versions of the policy
results    result of an act, shown by the next page
output     the last lines of a task
live       the event stream that makes an open page fetch itself again
templates/ and static/   HTML, style and script
"""
