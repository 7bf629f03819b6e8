"""`python -m metasched`: the same as the command."""

import sys

from metasched.cli import main

sys.exit(main())
