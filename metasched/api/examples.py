"""Examples in the OpenAPI document: requests that a daemon takes as they are, and their answers.

The answers are of a site with the clusters alpha (Slurm) and grid (Grid Engine), and the licence
solver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CLOSED = {"state": "closed", "failures": 0, "since": None, "next_try": None, "words": ""}
_JOB: dict[str, Any] = {
    "job": 100000017,
    "array": None,
    "task": None,
    "name": "wing",
    "user": "ada",
    "state": "running",
    "reason": "",
    "priority": 7,
    "cluster": "alpha",
    "native_id": "4711",
    "submitted": "2026-11-26T08:00:00.000+00:00",
    "expected_start": None,
    "expected_early": None,
    "expected_late": None,
    "started": "2026-11-26T08:00:04.000+00:00",
    "ended": None,
    "exit_code": None,
}
_POLICY_VERSION: dict[str, Any] = {
    "version": 3,
    "time": "2026-11-26T08:00:00.000+00:00",
    "change": "activated",
    "by": "root",
    "reason": "more for the deadline users",
    "file": "/home/root/candidate.toml",
    "digest": "0c0f6b4a4d",
    "previous": 2,
    "copy_of": None,
    "text": None,
}
_DETAILS = _JOB | {
    "number": 100000017,
    "clusters": [],
    "cpus": 8,
    "tasks": 1,
    "nodes": None,
    "memory": 16384,
    "memory_per_cpu": None,
    "gres": {"gpu": 1},
    "gres_alternatives": [],
    "exclusive": False,
    "time_limit": 3600.0,
    "begin": None,
    "deadline": "2026-11-26T18:00:00.000+00:00",
    "account": "aero",
    "partition": "batch",
    "qos": None,
    "constraint": None,
    "comment": None,
    "wckey": "",
    "nice": 0,
    "nodelist": "",
    "exclude": "",
    "native": {},
    "licences": {"solver": 1},
    "dependency": None,
    "requeue": False,
    "licence_choices": [],
    "reservation": None,
    "directory": "/home/ada/wing",
    "output": "/home/ada/wing/wing.out",
    "error": None,
    "user_class": "regular",
    "attempt_state": "running",
    "signal": None,
    "node_list": "n3",
    "elapsed": 61.5,
    "cpu_seconds": None,
    "max_memory": None,
    "restarts": 0,
    "folded": None,
}
_CLUSTER = {
    "cluster": "alpha",
    "adapter": "slurm",
    "access": "commands",
    "state": "up",
    "cpus": 512,
    "used": 480,
    "pending": 12,
    "records": "slurmdbd",
    "listed": "2026-11-26T08:00:05.000+00:00",
    "load": [93600.0, 93600.0, 7200.0],
    "count": [13, 13, 1],
    "pulls": 4,
    "pulls_started_at_once": 4,
    "drained": None,
    "refusing": "",
    "refused_users": 0,
    "set_aside": 0,
    "local_policy": None,
    "breaker": _CLOSED,
    "worker": _CLOSED,
    "use": {"source": "slurmdbd", "until": "2026-11-26T07:55:00.000+00:00"}
    | {"breaker": _CLOSED, "shares": _CLOSED},
    "max_native_id": 67043328,
}
_DRAINED = _CLUSTER | {
    "state": "drained: new switches",
    "drained": {"by": "root", "since": "2026-11-26T08:00:00.000+00:00"}
    | {"reason": "new switches", "keep_pending": False, "entry": None},
}
_TOKENS = {"total": 20, "ours": 12, "outside": 3, "free": 5, "state": "ok"}
_LICENCE = {
    "licence": "solver",
    **_TOKENS,
    "waiting": 0,
    "rho": 0.0,
    "lingering": 0,
    "headroom": 0,
    "clusters": [],
    "machines": {},
    "server": "main",
    "observed": "2026-11-26T08:00:00.000+00:00",
    "chosen": None,
    "reserved": 0,
    "windows": [],
    "managers": [],
    "holders": [
        {
            "job": 100000017,
            "task": None,
            "user": "ada",
            "count": 1,
            "since": "2026-11-26T08:00:00.000+00:00",
            "expected": "2026-11-26T09:00:04.000+00:00",
        }
    ],
    "more_holders": 11,
}
_SHARE = {
    "account": "aero",
    "user": "ada",
    "parent": None,
    "weight": 1.0,
    "share": 0.25,
    "used": 864000.0,
    "used_share": 0.2,
    "place": 3,
}
_OFFER = {
    "cluster": "alpha",
    "start": "2026-11-27T08:00:00.000+00:00",
    "end": "2026-11-27T10:00:00.000+00:00",
    "nodes": 2,
    "processors": None,
}
_RESERVATION = {
    "reservation": 5,
    "user": "ada",
    "cluster": "alpha",
    "start": "2026-11-27T08:00:00.000+00:00",
    "end": "2026-11-27T10:00:00.000+00:00",
    "size": 64,
    "state": "confirmed",
    "nodes": ["n3", "n4"],
    "cause": "",
    "made": "2026-11-26T08:00:00.000+00:00",
    "closed": None,
    "offers": [],
    "let_run": 0.0,
    "licences": {},
    "mail": "",
    "users": [],
    "accounts": [],
    "series": None,
}
_SERIES = {
    "entry": 7,
    "name": None,
    "does": "reserve 64 processors for 2 h",
    "rule": "mon-fri 08:00",
    "zone": "Europe/Berlin",
    "next": ["2026-11-27T07:00:00.000+00:00", "2026-11-30T07:00:00.000+00:00"],
    "last": None,
    "running": None,
    "grace": 3600.0,
    "until": "2026-12-18T23:00:00.000+00:00",
    "owner": "ada",
    "made_by": "ada",
    "made": "2026-11-26T08:00:00.000+00:00",
    "folder": None,
}
_VERDICT = {
    "cluster": "alpha",
    "eligible": True,
    "reason": None,
    "text": "",
    "load": 7200.0,
    "count": 1,
    "chosen": True,
    "account": "aero",
    "gres": None,
    "nodes": None,
}
_EXPLANATION = {
    "job": 100000017,
    "task": None,
    "state": "running",
    "reason": "",
    "text": "It is running on alpha since 2026-11-26T08:00:04.000+00:00.",
    "expected_start": None,
    "expected_early": None,
    "expected_late": None,
    "expected_told": None,
    "priority": 7,
    "parts": [{"heuristic": "deadline", "contribution": 7.0, "weight": 1.0}],
    "ratings": None,
    "policy": {"priority": 3, "placement": 3, "load": None},
    "tuning": [],
    "clusters": [_VERDICT],
    "licences": [],
    "fair_share": None,
    "usage": None,
}
_NO_SHADOW_COUNTS = {
    "tasks": 0,
    "same_priority": 0,
    "higher_priority": 0,
    "lower_priority": 0,
    "choices": 0,
    "same_cluster": 0,
    "differing": 0,
}
_SHADOW_COUNTS = {
    "tasks": 420,
    "same_priority": 400,
    "higher_priority": 15,
    "lower_priority": 5,
    "choices": 300,
    "same_cluster": 290,
    "differing": 28,
}
_SHADOW = {
    "file": "/home/root/candidate.toml",
    "digest": "3f0c5f1f6f0c1dca1c1ee9be1bc57d3f5df7ce5c2f2e9a4c8b5dd64c6b5d3a10",
    "by": "root",
    "reason": "more for the deadline users",
    "since": "2026-11-26T08:00:00.000+00:00",
    "ended": None,
    "end": "",
    "obstacle": "",
    "place_obstacle": "",
    "problem": "",
    "waiting": 2,
    "dropped": 0,
    "all": _SHADOW_COUNTS,
    "with_deadline": _NO_SHADOW_COUNTS,
    "by_class": [{"user_class": "regular"} | _SHADOW_COUNTS],
    "moves": [{"live": "alpha", "candidate": "beta", "tasks": 10}],
    "differences": [
        {
            "time": "2026-11-26T09:30:00.000+00:00",
            "job": 100000017,
            "task": None,
            "user_class": "regular",
            "live_priority": 4,
            "priority": 6,
            "live_cluster": "alpha",
            "cluster": "beta",
        }
    ],
}
_CHANGED = {
    "jobs": [{"job": 100000017, "task": None, "was": "running", "state": "cancelled", "note": ""}]
}
_SCRIPT = "#!/bin/sh\nexec solve wing.dat\n"

# the body of a request, by its method and path
REQUESTS: Mapping[tuple[str, str], Any] = {
    ("POST", "/jobs"): {
        "jobs": [
            {
                "script": "s1",
                "environment": "e1",
                "directory": "/tmp",
                "name": "wing",
                "time_limit": 3600.0,
                "output": "/dev/null",
            }
        ],
        "scripts": {"s1": _SCRIPT},
        "environments": {"e1": {"PATH": "/usr/bin:/bin", "HOME": "/tmp"}},
    },
    ("POST", "/jobs/modify"): {
        "choice": {"jobs": ["100000017"]},
        "changes": {"time_limit": 7200.0, "name": "wing-2"},
    },
    ("POST", "/jobs/{action}"): {"jobs": ["100000017"]},
    ("POST", "/policy/activate"): {
        "text": "[weights]\nuser = 2\n",
        "file": "/home/root/candidate.toml",
        "reason": "more for the deadline users",
        "expected": 2,
    },
    ("POST", "/policy/shadow"): {
        "text": "[weights]\nuser = 2\n",
        "file": "/home/root/candidate.toml",
        "reason": "more for the deadline users",
    },
    ("POST", "/policy/undo"): {"reason": "too many late jobs", "expected": 3},
    ("POST", "/clusters/{name}/drain"): {"reason": "new switches"},
    ("POST", "/licences/release"): {"jobs": ["100000017"]},
    ("POST", "/licences/{name}/total"): {"total": 20},
    ("POST", "/reservations"): {
        "least": 2,
        "most": 2,
        "shortest": 3600.0,
        "longest": 7200.0,
        "dry_run": True,
    },
    ("POST", "/series"): {
        "every": "mon-fri 08:00",
        "until": 1797638400.0,
        "duration": 7200.0,
        "least": 2,
        "most": 2,
        "dry_run": True,
    },
    ("POST", "/tokens"): {"seconds": 86400.0},
}

# the answer with status 200
ANSWERS: Mapping[tuple[str, str], Any] = {
    ("POST", "/jobs"): {
        "jobs": [
            {
                "job": 100000017,
                "priority": 7,
                "cluster": "alpha",
                "tasks": None,
                "warnings": [],
                "expected_start": None,
                "expected_early": None,
                "expected_late": None,
            }
        ]
    },
    ("GET", "/jobs"): [_JOB],
    ("GET", "/jobs/details"): [_DETAILS],
    ("GET", "/jobs/wait"): [_JOB | {"state": "completed", "exit_code": 0}],
    ("POST", "/jobs/modify"): _CHANGED,
    ("POST", "/jobs/{action}"): _CHANGED,
    ("GET", "/jobs/{job}/story"): {
        "job": 100000017,
        "events": [
            {
                "time": "2026-11-26T08:00:00.000+00:00",
                "task": None,
                "attempt": None,
                "event": None,
                "from": None,
                "to": "queued",
                "cluster": None,
                "reason": "",
                "cause": "submitted",
                "policy": 3,
            }
        ],
    },
    ("GET", "/jobs/{job}/output"): {"output": "/home/ada/wing/wing.out", "error": None},
    ("GET", "/jobs/{job}/explain"): _EXPLANATION,
    ("GET", "/clusters"): [_CLUSTER],
    ("POST", "/clusters/{name}/drain"): _DRAINED,
    ("POST", "/clusters/{name}/resume"): _CLUSTER,
    ("GET", "/clusters/native"): {
        "first_id": 100000001,
        "instances": ["k3f9"],
        "clusters": [
            {
                "cluster": "alpha",
                "manager_name": "alpha",
                "up": True,
                "accounting": True,
                "config": "/etc/slurm/slurm.conf",
                "bin_dir": None,
                "tag_field": "admin_comment",
                "native_jobs": False,
            }
        ],
    },
    ("GET", "/partitions"): [
        {
            "partition": "batch",
            "cluster": "alpha",
            "state": "up",
            "default": True,
            "time_limit": 86400.0,
            "default_time": None,
            "max_nodes": None,
            "nodes": [
                {
                    "count": 16,
                    "up": True,
                    "cpus": 32,
                    "free_cpus": 2,
                    "memory": 192000,
                    "gres": {},
                    "features": ["avx512"],
                }
            ],
        }
    ],
    ("GET", "/licences"): [_LICENCE],
    ("GET", "/licences/servers"): [
        {
            "server": "main",
            "kind": "flexlm",
            "licences": ["solver"],
            "observed": "2026-11-26T08:00:00.000+00:00",
            "lacking": {},
            "breaker": _CLOSED,
        }
    ],
    ("GET", "/licences/{name}/history"): {
        "licence": "solver",
        "since": "2026-11-25T08:12:00.000+00:00",
        "seconds": 720,
        "periods": 120,
        "rows": [
            {
                "begin": "2026-11-26T07:48:00.000+00:00",
                "total": 24,
                "ours": 12,
                "outside": 4,
                "free": 8,
                "waiting": 0,
            }
        ],
    },
    ("POST", "/licences/release"): {
        "jobs": [{"job": 100000017, "task": None, "released": {"solver": 1}, "note": ""}]
    },
    ("POST", "/licences/{name}/total"): _LICENCE | {"chosen": 20},
    ("GET", "/limits"): [
        {"scope": "user", "name": "ada", "limit": "running", "used": 3, "maximum": 100}
    ],
    ("GET", "/shares"): [_SHARE],
    ("GET", "/reservations"): [_RESERVATION],
    ("POST", "/reservations"): {
        "offers": [
            _OFFER
            | {"starts": [["2026-11-27T08:00:00.000+00:00", "2026-11-27T09:00:00.000+00:00"]]}
        ]
    },
    ("POST", "/reservations/{id}/cancel"): _RESERVATION | {"state": "cancelled"},
    ("GET", "/calendar"): [_SERIES],
    ("POST", "/series"): _SERIES | {"occurrences": 16},
    ("POST", "/series/{id}/cancel"): _SERIES | {"next": []},
    ("GET", "/notifications"): [
        {
            "id": 41,
            "receiver": "mail",
            "user": "ada",
            "job": 100000017,
            "kind": "job_ended",
            "address": None,
            "created": "2026-11-26T09:00:00.000+00:00",
            "due": "2026-11-26T09:01:00.000+00:00",
            "state": "pending",
            "tries": 1,
            "error": "the mail program ended with 75",
            "ended": None,
        }
    ],
    ("GET", "/reports/{kind}"): {
        "report": "waits",
        "since": "2026-11-01",
        "until": "2026-11-27",
        "time_zone": "CET",
        "by": ["user"],
        "rows": [
            {
                "user": "ada",
                "jobs": 120,
                "mean_wait": 310.5,
                "median_wait": 64.0,
                "p90_wait": 1024.0,
                "max_wait": 7205.0,
                "mean_bounded_slowdown": 1.9,
            }
        ],
        "total": {
            "jobs": 120,
            "mean_wait": 310.5,
            "median_wait": 64.0,
            "p90_wait": 1024.0,
            "max_wait": 7205.0,
            "mean_bounded_slowdown": 1.9,
        },
    },
    ("POST", "/tokens"): {
        "id": 3,
        "token": "ms_shown-once",
        "expires": "2026-11-27T08:00:00.000+00:00",
        "scope": "user",
    },
    ("GET", "/tokens"): [
        {
            "id": 3,
            "user": "ada",
            "created": "2026-11-26T08:00:00.000+00:00",
            "expires": "2026-11-27T08:00:00.000+00:00",
            "revoked": None,
            "scope": "user",
            "parent": None,
        }
    ],
    ("POST", "/tokens/link"): {
        "url": "https://metasched.example.org:6450/web/sign-in?link=shown-once",
        "expires": "2026-11-26T08:05:00.000+00:00",
    },
    ("POST", "/tokens/{id}/revoke"): {"id": 3},
    ("GET", "/events"): [
        {
            "id": 812,
            "time": "2026-11-26T08:00:00.000+00:00",
            "kind": "cluster_drained",
            "actor": "root",
            "owner": None,
            "cluster": "alpha",
            "licence": None,
            "reservation": None,
            "job": None,
            "task": None,
            "count": 1,
            "cause": "new switches",
            "details": {},
        }
    ],
    ("GET", "/policy"): {
        "version": 3,
        "since": "2026-11-26T08:00:00.000+00:00",
        "values": {"max_priority": 10, "weights.user": 2.0, "load": "observed"},
        "change": "activated",
        "by": None,
        "reason": None,
        "file": None,
        "site_file": None,
        "differs_from_site_file": True,
        "plug_ins": None,
    },
    ("GET", "/policy/versions"): [_POLICY_VERSION],
    ("GET", "/policy/versions/{number}"): _POLICY_VERSION | {"text": "[weights]\nuser = 2\n"},
    ("GET", "/policy/shadow"): _SHADOW,
    ("POST", "/policy/shadow"): _SHADOW
    | {"waiting": 0}
    | dict.fromkeys(("all", "with_deadline"), _NO_SHADOW_COUNTS)
    | {"by_class": [], "moves": []},
    ("DELETE", "/policy/shadow"): _SHADOW
    | {"ended": "2026-11-27T08:00:00.000+00:00", "end": "stopped by root", "waiting": 0},
    ("POST", "/policy/activate"): _POLICY_VERSION,
    ("POST", "/policy/undo"): _POLICY_VERSION
    | {"version": 4, "change": "undone", "previous": None, "copy_of": 2},
    ("POST", "/reload"): {
        "changes": ['cluster "alpha" queue_depth'],
        "restart_needed": [],
        "findings": [],
    },
    ("GET", "/health"): {
        "instance": "k3f9",
        "version": "1.0.0",
        "commit": "5d41402ab",
        "started": "2026-11-25T06:00:00.000+00:00",
        "user": "ada",
        "operator": False,
        "mail": "",
        "notifications": [],
        "idempotency_keys": True,
        "first_id": 100000001,
        "max_array_tasks": 100000,
        "quarantine": [],
        "connections": [],
        "descriptors": None,
        "configuration": None,
        "withdrawals": [],
        "delayed": [],
        "altered": [],
    },
}


def add_examples(document: dict[str, Any]) -> None:
    """Add the examples to an OpenAPI document."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            route = method.upper(), path
            for examples, described in (
                (REQUESTS, operation.get("requestBody")),
                (ANSWERS, operation["responses"]["200"]),
            ):
                if route in examples:
                    described["content"]["application/json"]["example"] = examples[route]
