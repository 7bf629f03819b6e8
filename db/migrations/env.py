"""Alembic's entry: runs the migrations on the connection that db.store hands over."""

from alembic import context

from metasched.db.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
