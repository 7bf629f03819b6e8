"""Filters of views, in the queries of their addresses."""

from typing import Annotated

from fastapi import Query

MAX_FILTER = 200  # characters
Filter = Annotated[str, Query(max_length=MAX_FILTER)]
