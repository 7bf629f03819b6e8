"""Free processors over time under advance reservations (CARTS). Pure.

carts             free amounts, for dynamic binding
tree              the tree below `carts`
sets              free sets of processors, for static binding
assigned_nodes    nodes of reservations as they change; admits another
node_assignment   assigns nodes to reservations, so that each has its nodes throughout
relocation        moves reservations to make room for another
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metasched.carts.carts import Carts as Carts


def __getattr__(name: str) -> object:
    """Load `Carts` on first use (PEP 562)."""
    if name != "Carts":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from metasched.carts.carts import Carts

    return Carts
