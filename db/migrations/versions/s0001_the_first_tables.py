"""The first tables"""

import sqlalchemy as sa
from alembic import op

from metasched.db.schema import Int64

revision = "s0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", Int64, autoincrement=False, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("job", Int64, nullable=True),
        sa.Column("task_index", Int64, nullable=True),
        sa.Column("reservation", Int64, nullable=True),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("licence", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("count", Int64, nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.CheckConstraint("count > 0", name=op.f("ck_audit_count")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_actor", "audit", ["actor", "id"], unique=False)
    op.create_index("ix_audit_cluster", "audit", ["cluster", "id"], unique=False)
    op.create_index("ix_audit_job", "audit", ["job", "id"], unique=False)
    op.create_index("ix_audit_kind", "audit", ["kind", "id"], unique=False)
    op.create_index("ix_audit_owner", "audit", ["owner", "id"], unique=False)
    op.create_table(
        "audit_condition",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("subject", name=op.f("pk_audit_condition")),
    )
    op.create_table(
        "calendar",
        sa.Column("id", Int64, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("act", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("grace", sa.Float(), nullable=False),
        sa.Column("lead", sa.Float(), nullable=False),
        sa.Column("until", sa.Float(), nullable=True),
        sa.Column("next_run", sa.Float(), nullable=True),
        sa.Column("last_runs", sa.Text(), nullable=False),
        sa.Column("running", sa.Float(), nullable=True),
        sa.CheckConstraint("grace >= 0 AND lead >= 0", name=op.f("ck_calendar_times")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_calendar")),
    )
    op.create_index(
        "ix_calendar_name",
        "calendar",
        ["name"],
        unique=True,
        sqlite_where=sa.text("name <> ''"),
        postgresql_where=sa.text("name <> ''"),
    )
    op.create_table(
        "checkpoint",
        sa.Column("event", Int64, autoincrement=False, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("decision_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("event", name=op.f("pk_checkpoint")),
    )
    op.create_table(
        "cluster",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("info", sa.Text(), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_cluster")),
    )
    op.create_table(
        "content",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_content")),
    )
    op.create_table(
        "daily_licence_peak",
        sa.Column("day", Int64, autoincrement=False, nullable=False),
        sa.Column("licence", sa.Text(), nullable=False),
        sa.Column("peak", Int64, nullable=False),
        sa.Column("last", Int64, nullable=False),
        sa.Column("total", Int64, nullable=False),
        sa.PrimaryKeyConstraint("day", "licence", name=op.f("pk_daily_licence_peak")),
    )
    op.create_table(
        "daily_licence_use",
        sa.Column("day", Int64, autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("user_group", sa.Text(), nullable=False),
        sa.Column("user_class", sa.Text(), nullable=False),
        sa.Column("licence", sa.Text(), nullable=False),
        sa.Column("leases", Int64, nullable=False),
        sa.Column("token_seconds", sa.Float(), nullable=False),
        sa.Column("wait", sa.Float(), nullable=False),
        sa.Column("max_wait", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint(
            "day",
            "cluster",
            "user",
            "account",
            "user_group",
            "user_class",
            "licence",
            name=op.f("pk_daily_licence_use"),
        ),
    )
    op.create_index("ix_daily_licence_use_user", "daily_licence_use", ["user", "day"], unique=False)
    op.create_table(
        "daily_use",
        sa.Column("day", Int64, autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("user_group", sa.Text(), nullable=False),
        sa.Column("user_class", sa.Text(), nullable=False),
        sa.Column("jobs", Int64, nullable=False),
        sa.Column("completed", Int64, nullable=False),
        sa.Column("failed", Int64, nullable=False),
        sa.Column("timed_out", Int64, nullable=False),
        sa.Column("cancelled", Int64, nullable=False),
        sa.Column("elapsed", sa.Float(), nullable=False),
        sa.Column("cpu_allocated", sa.Float(), nullable=False),
        sa.Column("cpu_used", sa.Float(), nullable=False),
        sa.Column("cpu_measured", sa.Float(), nullable=False),
        sa.Column("node_seconds", sa.Float(), nullable=False),
        sa.Column("gpu_seconds", sa.Float(), nullable=False),
        sa.Column("cpu_outside", sa.Float(), nullable=False),
        sa.Column("starts", Int64, nullable=False),
        sa.Column("wait", sa.Float(), nullable=False),
        sa.Column("max_wait", sa.Float(), nullable=False),
        sa.Column("slowdown", sa.Float(), nullable=False),
        sa.Column("deadlines", Int64, nullable=False),
        sa.Column("met", Int64, nullable=False),
        sa.Column("missed", Int64, nullable=False),
        sa.Column("lateness", sa.Float(), nullable=False),
        sa.Column("max_lateness", sa.Float(), nullable=False),
        sa.Column("waits", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            "day",
            "cluster",
            "user",
            "account",
            "user_group",
            "user_class",
            name=op.f("pk_daily_use"),
        ),
    )
    op.create_index("ix_daily_use_user", "daily_use", ["user", "day"], unique=False)
    op.create_table(
        "drain",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("keep_pending", sa.Boolean(), nullable=False),
        sa.Column("entry", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", name=op.f("pk_drain")),
    )
    op.create_table(
        "epoch",
        sa.Column("number", Int64, autoincrement=False, nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_epoch")),
    )
    op.create_table(
        "event",
        sa.Column("id", Int64, autoincrement=False, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
    )
    op.create_table(
        "instance",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("first_dispatch", Int64, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_instance")),
    )
    op.create_table(
        "licence",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("total", Int64, nullable=False),
        sa.Column("leased", Int64, nullable=False),
        sa.Column("excess", Int64, nullable=False),
        sa.Column("operator_total", Int64, nullable=True),
        sa.Column("outside", Int64, nullable=False),
        sa.Column("observed", sa.Float(), nullable=True),
        sa.Column("used_outside", sa.Text(), nullable=False),
        sa.CheckConstraint("leased <= total + excess", name=op.f("ck_licence_within_total")),
        sa.CheckConstraint("leased >= 0 AND excess >= 0", name=op.f("ck_licence_counts")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_licence")),
    )
    op.create_table(
        "licence_sample",
        sa.Column("licence", sa.Text(), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("total", Int64, nullable=True),
        sa.Column("leased", Int64, nullable=False),
        sa.Column("outside", Int64, nullable=False),
        sa.Column("free", Int64, nullable=True),
        sa.Column("waiting", Int64, nullable=False),
        sa.PrimaryKeyConstraint("licence", "time", name=op.f("pk_licence_sample")),
    )
    op.create_index("ix_licence_sample_time", "licence_sample", ["time"], unique=False)
    op.create_table(
        "limit_use",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("used", Int64, nullable=False),
        sa.Column("maximum", Int64, nullable=False),
        sa.Column("excess", Int64, nullable=False),
        sa.CheckConstraint("used <= maximum + excess", name=op.f("ck_limit_use_within_limit")),
        sa.CheckConstraint("used >= 0 AND excess >= 0", name=op.f("ck_limit_use_counts")),
        sa.PrimaryKeyConstraint("scope", "name", "resource", name=op.f("pk_limit_use")),
    )
    op.create_table(
        "listing_cursor",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("cursor", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", name=op.f("pk_listing_cursor")),
    )
    op.create_table(
        "outbox",
        sa.Column("id", Int64, autoincrement=False, nullable=False),
        sa.Column("receiver", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=True),
        sa.Column("job", Int64, nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("due", sa.Float(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("tries", Int64, nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("data", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "(state IN ('pending', 'sending')) = (ended IS NULL)", name=op.f("ck_outbox_ended")
        ),
        sa.CheckConstraint(
            "state IN ('delivered', 'failed', 'pending', 'sending', 'uncertain')",
            name=op.f("ck_outbox_state"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )
    op.create_index("ix_outbox_ended", "outbox", ["ended"], unique=False)
    op.create_index(
        "ix_outbox_open",
        "outbox",
        ["receiver", "id"],
        unique=False,
        sqlite_where=sa.text("ended IS NULL"),
        postgresql_where=sa.text("ended IS NULL"),
    )
    op.create_index("ix_outbox_user", "outbox", ["user", "receiver", "created"], unique=False)
    op.create_table(
        "period_use",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("period", Int64, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("first_day", Int64, nullable=False),
        sa.Column("jobs", Int64, nullable=False),
        sa.Column("completed", Int64, nullable=False),
        sa.Column("failed", Int64, nullable=False),
        sa.Column("timed_out", Int64, nullable=False),
        sa.Column("cancelled", Int64, nullable=False),
        sa.Column("elapsed", sa.Float(), nullable=False),
        sa.Column("cpu_allocated", sa.Float(), nullable=False),
        sa.Column("cpu_used", sa.Float(), nullable=False),
        sa.Column("cpu_measured", sa.Float(), nullable=False),
        sa.Column("node_seconds", sa.Float(), nullable=False),
        sa.Column("gpu_seconds", sa.Float(), nullable=False),
        sa.Column("cpu_outside", sa.Float(), nullable=False),
        sa.Column("deadlines", Int64, nullable=False),
        sa.Column("met", Int64, nullable=False),
        sa.Column("missed", Int64, nullable=False),
        sa.Column("lateness", sa.Float(), nullable=False),
        sa.Column("max_lateness", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("key", "period", "name", name=op.f("pk_period_use")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "policy_version",
        sa.Column("number", Int64, autoincrement=False, nullable=False),
        sa.Column("event", Int64, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("site_digest", sa.Text(), nullable=False),
        sa.Column("previous", Int64, nullable=True),
        sa.Column("copy_of", Int64, nullable=True),
        sa.CheckConstraint(
            "change IN ('activated', 'file', 'undone')", name=op.f("ck_policy_version_change")
        ),
        sa.CheckConstraint("previous < number", name=op.f("ck_policy_version_previous")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_policy_version")),
    )
    op.create_table(
        "reservation",
        sa.Column("id", Int64, autoincrement=False, nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("start", sa.Float(), nullable=False),
        sa.Column("end", sa.Float(), nullable=False),
        sa.Column("size", Int64, nullable=False),
        sa.Column("cpus", Int64, nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("bound_nodes", sa.Text(), nullable=False),
        sa.Column("known_to_manager", sa.Boolean(), nullable=False),
        sa.Column("rejections", Int64, nullable=False),
        sa.Column("closed", sa.Float(), nullable=True),
        sa.Column("offers", sa.Text(), nullable=False),
        sa.Column("let_run", sa.Float(), nullable=False),
        sa.Column("licences", sa.Text(), nullable=False),
        sa.Column("mail", sa.Text(), nullable=False),
        sa.Column("notified", sa.Float(), nullable=True),
        sa.Column("users", sa.Text(), nullable=False),
        sa.Column("accounts", sa.Text(), nullable=False),
        sa.Column("series", Int64, nullable=True),
        sa.CheckConstraint(
            "(state IN ('broken', 'cancelled', 'ended')) = (closed IS NOT NULL)",
            name=op.f("ck_reservation_closed"),
        ),
        sa.CheckConstraint(
            "state IN ('active', 'bound', 'broken', 'cancelled', 'confirmed', 'ended', 'requested')",
            name=op.f("ck_reservation_state"),
        ),
        sa.CheckConstraint("size > 0 AND cpus >= size", name=op.f("ck_reservation_size")),
        sa.CheckConstraint('start < "end"', name=op.f("ck_reservation_window")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservation")),
    )
    op.create_index(
        "ix_reservation_open",
        "reservation",
        ["cluster", "start"],
        unique=False,
        sqlite_where=sa.text("closed IS NULL OR known_to_manager"),
        postgresql_where=sa.text("closed IS NULL OR known_to_manager"),
    )
    op.create_table(
        "shadow",
        sa.Column("number", Int64, autoincrement=False, nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_shadow")),
    )
    op.create_table(
        "shadow_decision",
        sa.Column("id", Int64, nullable=False),
        sa.Column("shadow", Int64, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("job", Int64, nullable=False),
        sa.Column("task_index", Int64, nullable=False),
        sa.Column("user_class", sa.Text(), nullable=False),
        sa.Column("deadline", sa.Boolean(), nullable=False),
        sa.Column("eligible", Int64, nullable=False),
        sa.Column("live_priority", Int64, nullable=False),
        sa.Column("priority", Int64, nullable=False),
        sa.Column("live_cluster", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shadow_decision")),
    )
    op.create_table(
        "share_tree",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("tree", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", name=op.f("pk_share_tree")),
    )
    op.create_table(
        "share_use",
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("used", sa.Float(), nullable=False),
        sa.Column("as_of", sa.Float(), nullable=False),
        sa.CheckConstraint("used >= 0", name=op.f("ck_share_use_used")),
        sa.PrimaryKeyConstraint("account", "user", name=op.f("pk_share_use")),
    )
    op.create_table(
        "submission_key",
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body_digest", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("user", "key", name=op.f("pk_submission_key")),
    )
    op.create_index("ix_submission_key_created", "submission_key", ["created"], unique=False)
    op.create_table(
        "token",
        sa.Column("id", Int64, autoincrement=False, nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False),
        sa.Column("revoked", sa.Float(), nullable=True),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("parent", Int64, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_token")),
        sa.UniqueConstraint("digest", name=op.f("uq_token_digest")),
    )
    op.create_index("ix_token_parent", "token", ["parent"], unique=False)
    op.create_index("ix_token_user", "token", ["user", "id"], unique=False)
    op.create_table(
        "tuning",
        sa.Column("parameter", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("parameter", name=op.f("pk_tuning")),
    )
    op.create_table(
        "tuning_change",
        sa.Column("id", Int64, nullable=False),
        sa.Column("event", Int64, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("job", Int64, nullable=True),
        sa.Column("parameter", sa.Text(), nullable=False),
        sa.Column("change", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tuning_change")),
    )
    op.create_index("ix_tuning_change_event", "tuning_change", ["event"], unique=False)
    op.create_table(
        "use_cursor",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("cursor", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", name=op.f("pk_use_cursor")),
    )
    op.create_table(
        "change",
        sa.Column("id", Int64, nullable=False),
        sa.Column("event", Int64, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("job", Int64, nullable=False),
        sa.Column("task_index", Int64, nullable=False),
        sa.Column("attempt", Int64, nullable=False),
        sa.Column("task_event", sa.Text(), nullable=True),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("run_last", Int64, nullable=True),
        sa.Column("run_step", Int64, nullable=True),
        sa.ForeignKeyConstraint(["event"], ["event.id"], name=op.f("fk_change_event")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_change")),
    )
    op.create_index("ix_change_event", "change", ["event"], unique=False)
    op.create_index("ix_change_job", "change", ["job", "id"], unique=False)
    op.create_table(
        "job",
        sa.Column("id", Int64, autoincrement=False, nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("submitted", sa.Float(), nullable=False),
        sa.Column("margin", sa.Float(), nullable=True),
        sa.Column("array", sa.Text(), nullable=True),
        sa.Column("priority", Int64, nullable=False),
        sa.Column("priority_parts", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("script", sa.Text(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("modified_spec", sa.Text(), nullable=True),
        sa.Column("policy_version", Int64, nullable=True),
        sa.ForeignKeyConstraint(
            ["environment"], ["content.digest"], name=op.f("fk_job_environment")
        ),
        sa.ForeignKeyConstraint(["script"], ["content.digest"], name=op.f("fk_job_script")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
    )
    op.create_index("ix_job_environment", "job", ["environment"], unique=False)
    op.create_index(
        "ix_job_margin",
        "job",
        ["id"],
        unique=False,
        sqlite_where=sa.text("margin >= 0"),
        postgresql_where=sa.text("margin >= 0"),
    )
    op.create_index("ix_job_script", "job", ["script"], unique=False)
    op.create_index("ix_job_user", "job", ["user", "id"], unique=False)
    op.create_table(
        "dependency",
        sa.Column("job", Int64, nullable=False),
        sa.Column("target", Int64, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_dependency_job")),
        sa.PrimaryKeyConstraint("job", "target", name=op.f("pk_dependency")),
    )
    op.create_index("ix_dependency_target", "dependency", ["target"], unique=False)
    op.create_table(
        "limit_mail",
        sa.Column("job", Int64, nullable=False),
        sa.Column("task_index", Int64, nullable=False),
        sa.Column("started", sa.Float(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_limit_mail_job")),
        sa.PrimaryKeyConstraint("job", "task_index", "started", "kind", name=op.f("pk_limit_mail")),
    )
    op.create_table(
        "task",
        sa.Column("job", Int64, nullable=False),
        sa.Column("task_index", Int64, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("target", sa.Text(), nullable=True),
        sa.Column("attempts", Int64, nullable=False),
        sa.Column("moves", Int64, nullable=False),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("ignore_rejections_until", Int64, nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "(state IN ('cancelled', 'completed', 'failed', 'rejected', 'timeout')) = (ended IS NOT NULL)",
            name=op.f("ck_task_ended"),
        ),
        sa.CheckConstraint(
            "state IN ('cancelled', 'completed', 'dispatching', 'failed', 'held', 'pending', 'queued', 'rejected', 'running', 'suspended', 'timeout', 'unknown')",
            name=op.f("ck_task_state"),
        ),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_task_job")),
        sa.PrimaryKeyConstraint("job", "task_index", name=op.f("pk_task")),
    )
    op.create_index("ix_task_ended", "task", ["ended", "job", "task_index"], unique=False)
    op.create_index(
        "ix_task_open",
        "task",
        ["job", "task_index"],
        unique=False,
        sqlite_where=sa.text("ended IS NULL"),
        postgresql_where=sa.text("ended IS NULL"),
    )
    op.create_index(
        "ix_task_user_ended",
        "task",
        ["user", "ended", "job", "task_index"],
        unique=False,
        sqlite_where=sa.text("ended IS NOT NULL"),
        postgresql_where=sa.text("ended IS NOT NULL"),
    )
    op.create_index(
        "ix_task_user_open",
        "task",
        ["user", "job", "task_index"],
        unique=False,
        sqlite_where=sa.text("ended IS NULL"),
        postgresql_where=sa.text("ended IS NULL"),
    )
    op.create_table(
        "task_run",
        sa.Column("job", Int64, nullable=False),
        sa.Column("first_index", Int64, nullable=False),
        sa.Column("last_index", Int64, nullable=False),
        sa.Column("step", Int64, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("user", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "(state = 'cancelled') = (ended IS NOT NULL)", name=op.f("ck_task_run_ended")
        ),
        sa.CheckConstraint(
            "state IN ('cancelled', 'held', 'queued')", name=op.f("ck_task_run_state")
        ),
        sa.CheckConstraint(
            "step > 0 AND last_index >= first_index", name=op.f("ck_task_run_indices")
        ),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_task_run_job")),
        sa.PrimaryKeyConstraint("job", "first_index", name=op.f("pk_task_run")),
    )
    op.create_index("ix_task_run_ended", "task_run", ["ended", "job"], unique=False)
    op.create_index(
        "ix_task_run_open",
        "task_run",
        ["job", "first_index"],
        unique=False,
        sqlite_where=sa.text("ended IS NULL"),
        postgresql_where=sa.text("ended IS NULL"),
    )
    op.create_index("ix_task_run_user", "task_run", ["user", "job", "first_index"], unique=False)
    op.create_table(
        "attempt",
        sa.Column("job", Int64, nullable=False),
        sa.Column("task_index", Int64, nullable=False),
        sa.Column("number", Int64, nullable=False),
        sa.Column("dispatch_id", Int64, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("dispatched", sa.Float(), nullable=False),
        sa.Column("accepted", sa.Float(), nullable=True),
        sa.Column("tried", sa.Float(), nullable=True),
        sa.Column("native_id", sa.Text(), nullable=True),
        sa.Column("intent", sa.Text(), nullable=True),
        sa.Column("target", sa.Text(), nullable=True),
        sa.Column("started", sa.Float(), nullable=True),
        sa.Column("run_since", sa.Float(), nullable=True),
        sa.Column("ended", sa.Float(), nullable=True),
        sa.Column("exit_code", Int64, nullable=True),
        sa.Column("signal", Int64, nullable=True),
        sa.Column("manager_reason", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("cpu_seconds", sa.Float(), nullable=True),
        sa.Column("max_memory", Int64, nullable=True),
        sa.Column("rejected", sa.Boolean(), nullable=False),
        sa.Column("yields_to", Int64, nullable=True),
        sa.Column("restarts", Int64, nullable=False),
        sa.Column("has_started", sa.Boolean(), nullable=False),
        sa.Column("fence", sa.Text(), nullable=False),
        sa.Column("gres_choice", Int64, nullable=True),
        sa.Column("licence_choice", Int64, nullable=True),
        sa.Column("revoking", sa.Boolean(), nullable=False),
        sa.Column("revoked", sa.Boolean(), nullable=False),
        sa.Column("lease_expired", sa.Boolean(), nullable=False),
        sa.Column("elapsed", sa.Float(), nullable=True),
        sa.Column("allocated_cpus", Int64, nullable=True),
        sa.Column("account", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('cancelled', 'completed', 'dispatching', 'failed', 'node_fail', 'out_of_memory', 'pending', 'preempted', 'running', 'suspended', 'timeout', 'unknown')",
            name=op.f("ck_attempt_state"),
        ),
        sa.ForeignKeyConstraint(
            ["job", "task_index"], ["task.job", "task.task_index"], name="fk_attempt_task"
        ),
        sa.PrimaryKeyConstraint("job", "task_index", "number", name=op.f("pk_attempt")),
    )
    op.create_index(
        "ix_attempt_lacks_use",
        "attempt",
        ["cluster", "ended", "job", "task_index", "number"],
        unique=False,
        sqlite_where=sa.text(
            "started IS NOT NULL AND ended IS NOT NULL AND native_id IS NOT NULL AND cpu_seconds IS NULL"
        ),
        postgresql_where=sa.text(
            "started IS NOT NULL AND ended IS NOT NULL AND native_id IS NOT NULL AND cpu_seconds IS NULL"
        ),
    )
    op.create_index(
        "ix_attempt_one_live",
        "attempt",
        ["job", "task_index"],
        unique=True,
        sqlite_where=sa.text(
            "state IN ('dispatching', 'pending', 'running', 'suspended', 'unknown')"
        ),
        postgresql_where=sa.text(
            "state IN ('dispatching', 'pending', 'running', 'suspended', 'unknown')"
        ),
    )
    op.create_table(
        "lease",
        sa.Column("id", Int64, nullable=False),
        sa.Column("licence", sa.Text(), nullable=False),
        sa.Column("job", Int64, nullable=False),
        sa.Column("task_index", Int64, nullable=False),
        sa.Column("attempt", Int64, nullable=False),
        sa.Column("tokens", Int64, nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.Column("until", sa.Float(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("lingering_until", sa.Float(), nullable=True),
        sa.CheckConstraint("(until IS NULL) = (reason IS NULL)", name=op.f("ck_lease_ended")),
        sa.CheckConstraint("tokens > 0", name=op.f("ck_lease_tokens")),
        sa.ForeignKeyConstraint(
            ["job", "task_index", "attempt"],
            ["attempt.job", "attempt.task_index", "attempt.number"],
            name="fk_lease_attempt",
        ),
        sa.ForeignKeyConstraint(["licence"], ["licence.name"], name=op.f("fk_lease_licence")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lease")),
    )
    op.create_index("ix_lease_job", "lease", ["job", "task_index"], unique=False)
    op.create_index("ix_lease_lingering_until", "lease", ["lingering_until"], unique=False)
    op.create_index(
        "ix_lease_one_live",
        "lease",
        ["licence", "job", "task_index"],
        unique=True,
        sqlite_where=sa.text("until IS NULL"),
        postgresql_where=sa.text("until IS NULL"),
    )
    op.execute("INSERT INTO epoch (number, holder) VALUES (0, '')")
