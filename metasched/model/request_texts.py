"""Bounded texts and lists of requests that pydantic validates; see `request_bounds`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from metasched.model.request_bounds import MAX_NAME, MAX_NAMES, MAX_REASON, MAX_WORD

Name = Annotated[str, Field(max_length=MAX_NAME)]
Names = Annotated[tuple[Name, ...], Field(max_length=MAX_NAMES)]
Counts = Annotated[Mapping[Name, int], Field(max_length=MAX_NAMES)]
Word = Annotated[str, Field(max_length=MAX_WORD)]
Reason = Annotated[str, Field(max_length=MAX_REASON)]
